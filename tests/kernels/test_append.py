"""Every implementation of appending against a NumPy loop, and that a donated pool is written in place."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.append import api, append, behind, shapes
from kvjax.types import SLACK

#: Slots that regions have room for beyond what they hold.
ROOM = 64
CASES = shapes.SHAPES | {
    "empty regions": shapes.Shape(((0, 0),), (3,), 4, 8, 8, ("float32", "float32")),
    "nothing real": shapes.Shape(((5, 9), (1, 0)), (0, 0), 2, 8, 8, ("float32", "float16")),
}


def make(shape, seed=0):
    """pools, rows, start, length, count; every slot of the pools holds something of its own."""
    rng = np.random.default_rng(seed)
    length = np.array(shape.lengths, np.int32)
    room = length + ROOM + 8 * rng.integers(0, 3, length.shape)
    start = ((np.cumsum(room) - room.ravel()).reshape(length.shape) // 8 * 8).astype(np.int32)
    slots, new = int(room.sum()) + SLACK, (*length.shape, shape.t)
    draw = lambda shape, dtype: jnp.asarray(rng.integers(0, 200, shape), dtype)  # noqa: E731
    pools = dict(k=draw((slots, shape.k), shape.dtypes[0]), v=draw((slots, shape.v), shape.dtypes[1]), pos=draw(slots, "uint16"))
    rows = dict(k=draw((*new, shape.k), shape.dtypes[0]), v=draw((*new, shape.v), "float32"), pos=draw(new, "int32"))
    return pools, rows, *map(jnp.asarray, (start, length, np.array(shape.counts, np.int32)))


def wanted(pools, rows, start, length, count):
    """Row by row; rows are rounded as their pool's dtype does."""
    out = {name: np.array(x) for name, x in pools.items()}
    for name, x in out.items():
        new = np.asarray(rows[name].astype(x.dtype))
        for b, h in np.ndindex(start.shape):
            for i in range(count[b]):
                x[start[b, h] + length[b, h] + i] = new[b, h, i]
    return out


def same(got, want):
    for name, x in want.items():
        assert got[name].dtype == x.dtype
        np.testing.assert_array_equal(got[name], x)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("impl", api.IMPLEMENTATIONS)
def test_rows_stand_behind_what_was_there(impl, case):
    operands = make(CASES[case])
    same(append(*operands, impl=impl), wanted(*operands))


def test_behind_lists_the_same_slots():
    pools, rows, start, length, count = make(CASES["smollm2-135m, a question"])
    slots = behind(start, length, count, t=64, slots=pools["k"].shape[0])
    got = pools["k"].at[slots.reshape(-1)].set(rows["k"].reshape(-1, 64), mode="drop")
    np.testing.assert_array_equal(got, wanted(pools, rows, start, length, count)["k"])
    assert (slots == pools["k"].shape[0]).sum() == 3 * (64 - 17)


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_donated_pool_is_written_in_place(name):
    operands = make(shapes.SHAPES[name])
    done = jax.jit(append, donate_argnums=0).lower(*operands).compile().memory_analysis()
    pool, new = (sum(x.nbytes for x in jax.tree.leaves(operands[i])) for i in (0, 1))
    assert done.alias_size_in_bytes == pool and done.temp_size_in_bytes <= 8 * new + 65536 < pool


def test_counts_are_data():
    traced = []

    @jax.jit
    def run(*operands):
        traced.append(1)
        return append(*operands)

    pools, rows, start, length, _ = make(CASES["smollm2-135m, a question"])
    for count in ([0, 0], [64, 1], [9, 33]):
        operands = pools, rows, start, length, jnp.array(count, jnp.int32)
        same(run(*operands), wanted(*operands))
    assert len(traced) == 1


def test_refusals_name_the_way_out():
    pools, rows, *where = make(CASES["empty regions"])
    refused = partial(pytest.raises, ValueError)
    with refused(match="xla, reference"):
        append(pools, rows, *where, impl="cudnn")
    with refused(match="like the pools"):
        append(pools, {"k": rows["k"]}, *where)
    with refused(match="by a pool's row"):
        append(pools, rows | {"k": rows["k"][..., :4]}, *where)
    with refused(match="by t by"):
        append(pools, rows | {"k": rows["k"][:, :, :2]}, *where)
