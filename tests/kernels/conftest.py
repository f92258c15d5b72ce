"""Tests of an implementation that this machine cannot build are skipped, with the reason."""

import pytest


@pytest.fixture(autouse=True)
def buildable(request):
    if getattr(request.node, "callspec", None) and request.node.callspec.params.get("impl") == "native":
        request.getfixturevalue("native")
