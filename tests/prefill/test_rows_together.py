"""Attention rows that several reductions read are computed once; each finds what it would by itself."""

import jax
import numpy as np
import pytest

import kvjax
from kvjax.evidence import AttentionStatistics
from tests.conftest import everything, ids_of

#: The reductions of attention that the library's stages read.
KNOWN = {
    "attention_fading_sum_0.98",
    "attention_group_max_hit_gaps_0.0001",
    "attention_group_mean_late_rows_0.05_1.2_16",
    "attention_group_mean_low_rows_32",
    "attention_group_mean_near_sum_0.2",
    "attention_group_mean_sum_of_squares",
    "attention_tempered",
}


@pytest.mark.slow
def test_reductions_of_the_same_rows_are_what_they_are_alone(lm):
    """To the bit, over two chunks of a prompt."""
    needs = sorted((need for need in everything() if isinstance(need, AttentionStatistics)), key=lambda need: need.key)
    assert KNOWN <= {need.key for need in needs}
    together = kvjax.prefill(lm, ids_of(150), needs=frozenset(needs), chunk=64).rows[0].evidence
    for need in needs:
        alone = kvjax.prefill(lm, ids_of(150), needs={need}, chunk=64).rows[0].evidence
        for mine, other in zip(together, alone, strict=True):
            for x, y in zip(*(jax.tree.leaves(found.of(need)) for found in (mine, other)), strict=True):
                np.testing.assert_array_equal(x, y)
