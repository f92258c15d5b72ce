"""The Mosaic kernel of ragged attention by Pallas' interpreter, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.ragged_attention import items, mosaic

from . import oracle
from .test_ragged_attention import close, make

#: lengths [b][h], g, d, dtype: an item a region and several, ends inside a block and at it, a region of nothing
CASES = {
    "bfloat16": ([[70, 3]], 2, 64, "bfloat16"),
    "float16, several items": ([[0, 200], [64, 129]], 4, 128, "float16"),
    "group of 16": ([[1, 65]], 16, 64, "float16"),
}


@pytest.mark.parametrize("case", CASES)
def test_matches_float64(case):
    lengths, g, d, dtype = CASES[case]
    operands = make(lengths, g, 1, d, dtype)
    out, lse, _ = oracle.ragged(*map(np.asarray, operands))
    got, got_lse = mosaic.attention(*operands, window=None, config=mosaic.Config(programs=3, stages=2, interpret=True))
    assert got.dtype == dtype and got_lse.dtype == jnp.float32
    close(got, out, dtype)
    close(got_lse, lse, dtype)


@pytest.mark.parametrize("lengths", [(65536, 2048, 2048, 0, 2048), (0, 0), (1, 0, 64, 65), tuple(range(0, 6400, 64))])
def test_items_cover_every_slot_once(lengths):
    lengths = jnp.asarray(lengths, jnp.int32)
    start = (jnp.cumsum(lengths) - lengths) * 8
    region, slot, blocks, held = map(np.asarray, items.plan(start, lengths, 64, 120))
    assert len(region) == 120 + len(lengths) and not blocks[region == len(lengths)].any()
    for r, n in enumerate(np.asarray(lengths)):
        mine = [np.arange(min(64 * b, h)) + s for s, b, h in zip(*(x[region == r] for x in (slot, blocks, held)), strict=True)]
        assert np.array_equal(np.concatenate([np.zeros(0, int), *mine]), int(start[r]) + np.arange(n))
    most = max(1, -(-int((-(-lengths // 64)).sum()) // 120))
    assert blocks.max() <= most  # whoever holds most gets the most programs


def test_refuses_by_name():
    q, k, v, *where = make([[30, 7]], 2, 1, 64, "bfloat16")
    assert mosaic.refuses(q, k, v, *where) is None
    assert "window 5" in mosaic.refuses(q, k, v, *where, window=5)
    assert "one for all" in mosaic.refuses(q.astype(jnp.float32), k, v, *where)
    assert "64 or 128" in mosaic.refuses(*(jax.ShapeDtypeStruct((*x.shape[:-1], 80), x.dtype) for x in (q, k, v)), *where)
