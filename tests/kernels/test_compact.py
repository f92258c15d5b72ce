"""Every implementation of moving slots against NumPy, and that a donated pool is written in place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.compact import api, compact, move_regions, pick, plan, rewrite, shapes
from kvjax.types import SLACK

CASES = shapes.SHAPES | {
    "nothing goes": shapes.Shape(((5, 9),), ((5, 9),), 16, 8, 8),
    "everything but one": shapes.Shape(((40, 1), (33, 9)), ((1, 1), (1, 9)), 64, 8, 8),
}


def make(shape, seed=0):
    """pools, start, keep and valid; every slot of the pools holds something of its own."""
    rng = np.random.default_rng(seed)
    length = np.array(shape.lengths, np.int32)
    room = -(-length // 8) * 8 + 8 * rng.integers(0, 3, length.shape)
    start = (np.cumsum(room) - room.ravel()).reshape(length.shape).astype(np.int32)
    slots = int(room.sum()) + SLACK
    valid = np.arange(shape.cap) < length[..., None]
    keep = np.zeros_like(valid)
    for at in np.ndindex(length.shape):
        keep[at][rng.permutation(length[at])[: shape.kept[at[0]][at[1]]]] = True
    draw = lambda *size: jnp.asarray(rng.normal(size=size), jnp.float32)  # noqa: E731
    pools = dict(k=draw(slots, shape.k), v=draw(slots, shape.v).astype(jnp.bfloat16), pos=jnp.arange(slots, dtype=jnp.int32))
    return pools, jnp.asarray(start), jnp.asarray(keep), jnp.asarray(valid)


def held(pools, start, length):
    """The slots in use, region by region."""
    regions = [slice(start[at], start[at] + length[at]) for at in np.ndindex(start.shape)]
    return {name: [np.asarray(x)[region] for region in regions] for name, x in pools.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("impl", api.IMPLEMENTATIONS)
def test_regions_hold_what_is_kept_and_as_much_as_can_stay_stays(impl, case):
    pools, start, keep, valid = make(CASES[case])
    moves = plan(keep, valid)
    got = held(compact(pools, start, moves, impl=impl), np.asarray(start), np.asarray(moves.length))
    assert np.array_equal(moves.length, CASES[case].kept)
    for r, at in enumerate(np.ndindex(start.shape)):
        kept = np.flatnonzero(keep[at]) + int(start[at])
        now = got["pos"][r]
        assert np.array_equal(np.sort(now), kept)
        stay = kept[kept < int(start[at]) + len(kept)]
        assert np.array_equal(now[stay - int(start[at])], stay)
        assert int(moves.count[at]) == len(kept) - len(stay)
        for name in ("k", "v"):  # what belongs together moves together
            assert np.array_equal(got[name][r], np.asarray(pools[name])[now])


@pytest.mark.parametrize("impl", api.IMPLEMENTATIONS)
def test_other_regions_and_the_slack_stay(impl):
    pools, start, keep, valid = make(CASES["everything but one"])
    owned = np.zeros(len(pools["pos"]), bool)
    for at in np.ndindex(start.shape):
        owned[int(start[at]) : int(start[at]) + int(valid[at].sum())] = True
    got = compact(pools, start, plan(keep, valid), impl=impl)
    assert np.array_equal(np.asarray(got["pos"])[~owned], np.flatnonzero(~owned))


@pytest.mark.parametrize("count", [(0, 0), (5, 3), (1, 0)])
@pytest.mark.parametrize("impl", api.IMPLEMENTATIONS)
def test_rows_are_written_back(impl, count):
    rng = np.random.default_rng(0)
    slots = rng.permutation(64)[:10].reshape(1, 2, 5).astype(np.int32)
    pools = dict(k=rng.normal(size=(64, 8)).astype(np.float32), v=np.zeros((64, 4), np.float16))
    rows = dict(k=rng.normal(size=(1, 2, 5, 8)).astype(np.float32), v=rng.normal(size=(1, 2, 5, 4)).astype(np.float32))
    want = {name: x.copy() for name, x in pools.items()}
    for h, n in enumerate(count):
        for name, x in want.items():
            x[slots[0, h, :n]] = rows[name][0, h, :n]
    operands = jax.tree.map(jnp.asarray, (pools, rows, slots, np.array([count], np.int32)))
    for name, x in rewrite(*operands, impl=impl).items():
        np.testing.assert_array_equal(x, want[name])


def picked(slots=1200, n=700):
    """Operands of `pick` for regions of many blocks, none and one row, and what their slots hold then, region by region."""
    rng = np.random.default_rng(3)
    start, count = np.array([[0, 520], [528, 840]], np.int32), np.array([[513, 0], [300, 1]], np.int32)
    order = np.sort(rng.integers(0, n, (2, 2, 600)), -1).astype(np.int32)
    pools = dict(k=np.zeros((slots, 8), np.float32), v=np.zeros((slots, 4), jnp.bfloat16), pos=np.zeros(slots, np.uint16))
    draw = lambda *more: rng.normal(size=(2, 2, n, *more)).astype(np.float32)  # noqa: E731
    rows = dict(k=draw(8), v=draw(4), pos=np.broadcast_to(np.arange(n, dtype=np.int32), (2, 2, n)))
    chosen = lambda x: [x[at][order[at][: count[at]]] for at in np.ndindex(start.shape)]  # noqa: E731
    want = {name: [region.astype(pools[name].dtype) for region in chosen(x)] for name, x in rows.items()}
    return jax.tree.map(jnp.asarray, (pools, rows, order, start, count)), want


@pytest.mark.parametrize("impl", api.IMPLEMENTATIONS)
def test_chosen_rows_are_packed(impl):
    operands, want = picked()
    got = held(pick(*operands, impl=impl), *map(np.asarray, operands[-2:]))
    for name, regions in want.items():
        assert all(np.array_equal(*pair) for pair in zip(got[name], regions, strict=True))


@pytest.mark.parametrize("impl", api.IMPLEMENTATIONS)
def test_regions_move_between_pools(impl):
    pools, start, _, valid = make(CASES["smollm2-135m, every 64 tokens, a batch"])
    length = valid.sum(-1).astype(jnp.int32)
    new = (jnp.cumsum(length.reshape(-1) + 9) - length.reshape(-1)).reshape(start.shape)
    slots = int((length + 9).sum()) + SLACK
    got = held(move_regions(pools, start, new, length, slots=slots, impl=impl), np.asarray(new), np.asarray(length))
    want = held(pools, np.asarray(start), np.asarray(length))
    for name, regions in want.items():
        assert all(np.array_equal(*pair) for pair in zip(got[name], regions, strict=True))


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_a_donated_pool_is_written_in_place(name):
    pools, start, keep, valid = make(shapes.SHAPES[name])
    moves = plan(keep, valid)
    rows = {name: jnp.zeros((*keep.shape, *pools[name].shape[1:])) for name in ("k", "v")}
    bare = {name: pools[name] for name in rows}
    filled = jax.jit(compact, donate_argnums=0).lower(pools, start, moves)
    merged = jax.jit(rewrite, donate_argnums=0).lower(bare, rows, moves.sources, moves.count)
    packed = jax.jit(pick, donate_argnums=0).lower(bare, rows, moves.sources, start, moves.count)
    for program, owned in ((filled, pools), (merged, bare), (packed, bare)):
        done = program.compile().memory_analysis()
        pool = sum(x.nbytes for x in owned.values())
        assert done.alias_size_in_bytes == pool and done.temp_size_in_bytes < min(65536, pool)


def test_refusals_name_the_way_out():
    pools, start, keep, valid = make(CASES["nothing goes"])
    moves = plan(keep, valid)
    with pytest.raises(ValueError, match="xla, reference"):
        compact(pools, start, moves, impl="cudnn")
    with pytest.raises(ValueError, match="moves are for"):
        compact(pools, start[:, :1], moves)
    with pytest.raises(ValueError, match="by n by a pool's row"):
        pick(pools["k"], jnp.zeros((1, 2, 16, 4)), moves.sources, start, moves.count)
    with pytest.raises(ValueError, match="by a pool's row"):
        rewrite(pools["k"], jnp.zeros((1, 2, 16, 4)), moves.sources, moves.count)
