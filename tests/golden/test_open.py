"""Parity with the shared golden data, where it lies beside the project (or $KVJAX_GOLDEN says where)."""

import os
from pathlib import Path

import pytest

from tests.golden.__main__ import main

FOLDER = Path(os.environ.get("KVJAX_GOLDEN", Path(__file__).parents[3] / "shared" / "golden" / "open"))


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no golden data at {FOLDER}")
@pytest.mark.parametrize("model", sorted(p.name for p in FOLDER.iterdir() if p.is_dir()) if FOLDER.is_dir() else ["none"])
def test_every_cell_agrees(model, capsys):
    code = main([str(FOLDER), "--only", model])
    out = capsys.readouterr().out
    assert code == 0, out[-4000:]
    assert "not covered" not in out.replace("0 not covered", ""), out[-4000:]
