"""The three homes of values against NumPy, alone and inside loops, branches and donated programs."""

import gc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import kvjax
from kvjax.encode import ByCallback, OnDevice, OnHost, Stored
from kvjax.kernels.compact import Moves
from kvjax.kernels.weighted_values.xla import last_used
from kvjax.merge import WeightedNearest
from kvjax.placement import by_callback as callback
from kvjax.placement.lists import listed
from kvjax.placement.store import is_store, on_host, store_nbytes
from tests.conftest import policy_of

HOMES = [OnDevice(), OnHost(), ByCallback()]
SLOTS, D = 1536, 16


def filled(home, slots=SLOTS, d=D, dtype=jnp.float32, seed=0):
    rows = np.asarray(np.random.default_rng(seed).normal(size=(slots, d)), dtype)
    return put(home, home.empty(slots, d, dtype), 0, rows), rows


def put(home, store, first, rows):
    """The store with rows from slot `first` on."""
    order, one = jnp.arange(len(rows), dtype=jnp.int32), lambda x: jnp.asarray(x)[None, None]
    return home.pick(store, one(rows), one(order), one(np.int32(first)), one(np.int32(len(rows))))


def all_rows(home, store, slots=SLOTS):
    return np.asarray(home.take(store, jnp.arange(slots, dtype=jnp.int32)))


def random_weights(shape, length, share, seed=0):
    """Weights [b h g t n], most of them zero, none beyond a region's length."""
    rng = np.random.default_rng(seed)
    weights = rng.random(shape) * (rng.random(shape) < share)
    return np.where(np.arange(shape[-1]) < length[:, :, None, None, None], weights, 0).astype(np.float32)


def weighed(rows, start, weights):
    out = np.zeros((*weights.shape[:-1], rows.shape[1]))
    for b, h, g, t, j in zip(*np.nonzero(weights), strict=True):
        out[b, h, g, t] += weights[b, h, g, t, j] * rows[start[b, h] + j].astype(np.float64)
    return out


START = np.array([[0, 304], [904, 608]], np.int32)
LENGTH = np.array([[300, 0], [1, 257]], np.int32)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_fill_and_take(home, dtype):
    store, rows = filled(home, dtype=dtype)
    np.testing.assert_array_equal(all_rows(home, store), rows)
    np.testing.assert_array_equal(home.take(store, jnp.full((2, 1), SLOTS + 9, jnp.int32)), rows[[-1, -1]][:, None])


@pytest.mark.parametrize("slots", [SLOTS, 4800])
@pytest.mark.parametrize("home", HOMES)
def test_pick(home, slots):
    """Chosen rows in regions of any length, the last one at the store's end; what follows a region stays."""
    store, rows = filled(home, slots)
    start, count = np.array([[0, 304, 700]], np.int32), np.array([[300, 0, slots - 700]], np.int32)
    order = np.random.default_rng(1).integers(0, 500, (1, 3, count.max())).astype(np.int32)
    new = np.random.default_rng(2).normal(size=(1, 3, 500, D)).astype(np.float32)
    got = all_rows(home, jax.jit(home.pick, donate_argnums=0)(store, *map(jnp.asarray, (new, order, start, count))), slots)
    for h, (at, n) in enumerate(zip(start[0], count[0], strict=True)):
        rows[at : at + n] = new[0, h, order[0, h, :n]]
    np.testing.assert_array_equal(got, rows)


@pytest.mark.parametrize("home", HOMES)
def test_compact_and_rewrite(home):
    store, rows = filled(home)
    offsets = np.random.default_rng(1).permutation(257)[:80].reshape(2, 2, 2, 10).astype(np.int32)
    count, new = np.array([[10, 0], [3, 1]], np.int32), np.random.default_rng(2).normal(size=(2, 2, 10, D)).astype(np.float32)
    moves = Moves(jnp.asarray(LENGTH), *map(jnp.asarray, offsets), jnp.asarray(count))
    store = home.adopt(jax.jit(home.compact, donate_argnums=0)(store, jnp.asarray(START), moves), store)
    slots = START[..., None] + offsets[1] + 1
    store = home.rewrite(store, jnp.asarray(new), jnp.asarray(slots), jnp.asarray(count))
    for at in np.ndindex(START.shape):
        source, target = START[at] + offsets[:, *at, : count[at]]
        rows[target] = rows[source]
    for at in np.ndindex(START.shape):
        rows[slots[at][: count[at]]] = new[at][: count[at]]
    np.testing.assert_array_equal(all_rows(home, store), rows)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("rows", [3, 40])
def test_append(home, rows):
    """New rows in their slots, one that is not real in none but the store's last; all others as they were."""
    store, want = filled(home)
    slots, new = np.arange(rows, dtype=np.int32) * 7 + 5, np.random.default_rng(1).normal(size=(rows, D)).astype(np.float32)
    slots[1] = SLOTS
    got = all_rows(home, jax.jit(home.append, donate_argnums=0)(store, jnp.asarray(slots), jnp.asarray(new)))
    want[slots[slots < SLOTS]] = new[slots < SLOTS]
    np.testing.assert_array_equal(got[:-1], want[:-1])
    assert any((got[-1] == row).all() for row in (want[-1], new[1]))


@pytest.mark.parametrize("home, how", [*((home, "weighted_sum") for home in HOMES), (OnHost(), "weighted_sum_by_lists")])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 1.0])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_weigh(home, how, share, dtype):
    """None of 300 slots, a few, some, and all: in no list to five; 300 is no power of two."""
    store, rows = filled(home, dtype=dtype)
    weights = random_weights((2, 2, 3, 2, 300), LENGTH, share)
    got = jax.jit(getattr(home, how))(store, jnp.asarray(START), jnp.asarray(weights))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, weighed(rows, START, weights), atol=1e-4)


@pytest.mark.parametrize("home", HOMES)
def test_nothing_but_weighed_slots_is_read(home):
    store, rows = filled(home)
    store = put(home, store, 300, np.full((SLOTS - 300, D), np.nan, np.float32))
    weights = random_weights((1, 1, 1, 1, 512), LENGTH[:1, :1], 0.5)
    got = home.weighted_sum(store, jnp.zeros((1, 1), jnp.int32), jnp.asarray(weights))
    np.testing.assert_allclose(got, weighed(rows, START[:1], weights), atol=1e-4)


@partial(jax.jit, static_argnames="home", donate_argnames="store")
def _program(home, store, start, weights, steps):
    """A decode loop in small: every turn writes a row, weighs, sometimes moves a row, and weighs again."""

    def turn(state):
        i, store, total = state
        store = home.append(store, start[:, 0] + i, jnp.full((2, D), i, jnp.float32))
        total = total + home.weighted_sum(store, start, weights)
        source, none, often = jnp.broadcast_to(i, (2, 1, 1)), jnp.zeros((2, 1, 1), jnp.int32), (i % 2 == 0).astype(jnp.int32)
        target = (start[:, 1] - start[:, 0])[:, None, None]
        store = home.compact(store, start[:, :1], Moves(none[..., 0], source, target, jnp.full((2, 1), often)))
        more = lax.cond(i % 3 == 0, lambda: home.take(store, start).sum(), lambda: jnp.float32(0))
        return i + 1, store, total + home.weighted_sum(store, start, weights) + more

    zeros = jnp.zeros((*weights.shape[:-1], D))
    return lax.while_loop(lambda state: state[0] < steps, turn, (jnp.int32(0), store, zeros))[1:]


def _slow_program(rows, start, weights, steps):
    total = np.zeros((*weights.shape[:-1], D))
    for i in range(steps):
        rows[start[:, 0] + i] = i
        total += weighed(rows, start, weights)
        if i % 2 == 0:
            rows[start[:, 1]] = rows[start[:, 0] + i]
        total += weighed(rows, start, weights) + (rows[start].astype(np.float64).sum() if i % 3 == 0 else 0)
    return rows, total


@pytest.mark.parametrize("home", HOMES)
def test_a_donated_loop_reads_what_it_wrote(home):
    store, rows = filled(home)
    start = np.array([[0, 304], [608, 1000]], np.int32)
    weights = random_weights((2, 2, 1, 1, 300), np.full((2, 2), 300), 0.1)
    for steps in (7, 4):
        before = store
        new, total = _program(home, store, jnp.asarray(start), jnp.asarray(weights), steps)
        store = home.adopt(new, before)
        rows, want = _slow_program(rows, start, weights, steps)
        np.testing.assert_allclose(total, want, rtol=1e-4, atol=1e-3)
        np.testing.assert_array_equal(all_rows(home, store), rows)


@pytest.mark.parametrize("home", HOMES[1:])
def test_regions_move_to_a_new_store_and_the_old_one_stays(home):
    store, rows = filled(home)
    new = np.array([[512, 0], [0, 8]], np.int32)
    moved = home.relocate(store, jnp.asarray(START), jnp.asarray(new), jnp.asarray(LENGTH), 2048)
    found = all_rows(home, moved, 2048)
    for old, at, n in zip(START.flat, new.flat, LENGTH.flat, strict=True):
        np.testing.assert_array_equal(found[at : at + n], rows[old : old + n])
    assert not all_rows(home, put(home, moved, 0, np.zeros((2048, D), np.float32)), 2048).any()
    np.testing.assert_array_equal(all_rows(home, store), rows)


@pytest.mark.parametrize("home", HOMES[1:])
def test_concatenate(home):
    one, two = filled(home, seed=1), filled(home, slots=64, seed=2)
    both = home.concatenate([one[0], two[0]])
    np.testing.assert_array_equal(all_rows(home, both, SLOTS + 64), np.concatenate([one[1], two[1]]))
    assert on_host(both) and store_nbytes(both) == (SLOTS + 64) * D * 4


@pytest.mark.parametrize("home", HOMES)
def test_bytes_and_home(home):
    store, _ = filled(home, dtype=jnp.bfloat16)
    assert store_nbytes(store) == SLOTS * D * 2
    assert on_host(store) == (home.memory_kind == "pinned_host")
    assert is_store(store) == isinstance(home, ByCallback)


def test_rows_live_as_long_as_the_store_that_owns_them():
    home = ByCallback()
    store, _ = filled(home)
    handle = int(store.state[0])
    inside = jax.tree.map(lambda x: x, store)
    kept = home.adopt(inside, store)
    del store
    gc.collect()
    assert handle in callback._held and len(all_rows(home, kept))
    del kept
    gc.collect()
    assert handle not in callback._held
    with pytest.raises(RuntimeError, match="are gone"):
        inside.rows()


def test_a_store_may_be_let_go_before_its_writes_have_run():
    """They write nothing then; an ordered callback that failed would fail all after it."""
    home, one, row = ByCallback(), jnp.zeros(1, jnp.int32), jnp.ones((1, D))
    twice = jax.jit(lambda store: home.append(home.append(store, one, row), one, row).state)
    gc.collect()
    gc.freeze()  # nothing that others left is looked through again
    try:
        for _ in range(20):
            store, _ = filled(home)
            handle = int(store.state[0])
            state = twice(store)
            del store
            gc.collect()
            assert state.tolist() == [handle, 3]
    finally:
        gc.unfreeze()
    store, rows = filled(home)
    np.testing.assert_array_equal(all_rows(home, store), rows)


def test_writes_to_rows_that_are_gone_write_nothing():
    home = ByCallback()
    store, rows = filled(home)
    state = np.asarray(store.state)
    del store
    gc.collect()
    slots = np.array([0, 1], np.int32)
    written = [state[0], state[1] + 1]
    assert callback._put(state, slots, rows[:2]).tolist() == callback._copy(state, slots, slots).tolist() == written


def test_a_store_that_was_written_since_is_found_out():
    home = ByCallback()
    store, _ = filled(home)
    later = home.append(store, jnp.asarray([0], jnp.int32), jnp.zeros((1, D)))
    assert later.rows()[0].sum() == 0
    with pytest.raises(RuntimeError, match="later program"):
        store.rows()
    with pytest.raises(Exception, match="later program"):
        jax.block_until_ready(home.take(store, jnp.asarray([0], jnp.int32)))


def test_one_program_serves_every_store():
    traced = []
    home = ByCallback()

    @jax.jit
    def read(store):
        traced.append(1)
        return home.take(store, jnp.arange(4, dtype=jnp.int32))

    for seed in range(3):
        store, rows = filled(home, seed=seed)
        np.testing.assert_array_equal(read(store), rows[:4])
    assert len(traced) == 1


def test_listed_and_last_used():
    chosen = jnp.asarray([[[False, True, True, False, True]]])
    assert listed(chosen, 5).tolist() == [[[1, 2, 4, 5, 5]]]
    assert listed(chosen, 2).tolist() == [[[1, 2]]]
    weights = jnp.where(chosen, 0.5, 0.0)[:, :, None, None]
    assert last_used(weights).tolist() == [[5]] and last_used(0 * weights).tolist() == [[0]]


POLICIES = {"full": policy_of("full"), "h2o, merging": policy_of("h2o").replace(merge=WeightedNearest())}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if "h2o" in n else n for n in POLICIES])
@pytest.mark.parametrize("home", HOMES[1:])
def test_a_policy_decides_the_same_wherever_values_live(lm, home, name):
    pre = kvjax.prefill(lm, [list(range(70)), list(range(40, 90))])
    here = POLICIES[name]
    there = here.replace(encode=Stored(placement=home))
    cache, moved = kvjax.compress(pre, here), kvjax.compress(pre, there)
    assert moved.host_nbytes == cache.v.nbytes and moved.nbytes == cache.nbytes - cache.v.nbytes
    want = kvjax.decode(lm, cache, here, max_new_tokens=12, stop=(), return_logits=True)
    for _ in range(2):  # the cache stays valid
        got = kvjax.decode(lm, moved, there, max_new_tokens=12, stop=(), return_logits=True)
        np.testing.assert_array_equal(got.tokens, want.tokens)
        np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)
    for layer in range(3):
        for one, two in zip(sum(got.cache.kept(layer), []), sum(want.cache.kept(layer), []), strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("home", HOMES[1:])
def test_extend_stream_and_stack(lm, home):
    policy = policy_of("h2o").replace(encode=Stored(placement=home))
    one, two = (kvjax.compress(kvjax.prefill(lm, list(range(n))), policy) for n in (70, 60))
    both = kvjax.stack([one, two])
    assert both.host_nbytes == both.slots * 16 * 4
    longer = kvjax.extend(lm, both, [[3, 4, 5], [6]], policy).cache
    streamed = np.stack(list(kvjax.stream(lm, longer, policy, max_new_tokens=5, stop=())), 1)
    want = kvjax.decode(lm, kvjax.extend(lm, one, [3, 4, 5], policy).cache, policy, max_new_tokens=5, stop=())
    np.testing.assert_array_equal(streamed[0], want.tokens[0])
