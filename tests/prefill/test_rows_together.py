"""Attention rows that several reductions read are computed once; each finds what it would by itself."""

import jax
import numpy as np
import pytest

import kvjax
from kvjax.evidence import AttentionStatistics
from tests.conftest import everything, ids_of


@pytest.mark.slow
def test_reductions_of_the_same_rows_are_what_they_are_alone(lm):
    """To the bit, over two chunks of a prompt."""
    needs = sorted((need for need in everything() if isinstance(need, AttentionStatistics)), key=lambda need: need.key)
    assert len(needs) >= 7
    together = kvjax.prefill(lm, ids_of(150), needs=frozenset(needs), chunk=64).rows[0].evidence
    for need in needs:
        alone = kvjax.prefill(lm, ids_of(150), needs={need}, chunk=64).rows[0].evidence
        for mine, other in zip(together, alone, strict=True):
            for x, y in zip(*(jax.tree.leaves(found.of(need)) for found in (mine, other)), strict=True):
                np.testing.assert_array_equal(x, y)
