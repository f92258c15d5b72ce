"""One program a size class of pool, and no other: what compiles when budgets change, and how many classes they fall into."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import kvjax
from kvjax.cache.layout import decodes_as_it_is, plan_regions, resize
from kvjax.kernels.compact import host
from kvjax.types import DECODING
from tests.conftest import compilations, ids_of, policy_of

slow = partial(pytest.param, marks=pytest.mark.slow)
BUDGETS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
NEW = 4
#: Layers, rows and KV heads of SmolLM2-135M, tokens of a prompt and tokens to come.
SHAPE, TOKENS, LATER = (30, 1, 3), 1024, 64


@pytest.fixture(scope="module")
def prompts(lm):
    """Two prompts of about a length."""
    return [kvjax.prefill(lm, ids_of(400 + i, i)) for i in range(2)]


def run(lm, pre, policy, *, headroom=0, pool_budget=None):
    cache = kvjax.compress(pre, policy, headroom=headroom, pool_budget=pool_budget)
    return kvjax.decode(lm, cache, policy, max_new_tokens=NEW, stop=(), pool_budget=pool_budget)


def programs(seen: list[str]) -> int:
    """How many decode programs were compiled; nothing else was."""
    assert set(seen) <= {"_loop", "jit(_loop)"}, set(seen)
    return seen.count("jit(_loop)")


@pytest.mark.parametrize("name", ["snapkv", "adakv", "knorm", slow("streaming_llm"), slow("h2o")])
def test_eight_budgets_compile_at_most_eight_programs_and_nothing_else(lm, prompts, name):
    for budget in (1.0, 0.9):
        run(lm, prompts[0], policy_of(name, budget))
    with compilations() as seen:
        for budget in BUDGETS:
            run(lm, prompts[1], policy_of(name, budget))
    assert programs(seen) <= len(BUDGETS)
    with compilations() as seen:  # the classes are the same, whether compress plans the room or decode makes it
        for budget in BUDGETS:
            run(lm, prompts[1], policy_of(name, budget), headroom=NEW)
    assert programs(seen) == 0


@pytest.mark.parametrize("name", ["snapkv", "adakv", "knorm", "streaming_llm", slow("h2o")])
def test_a_pool_budget_makes_one_program_of_them(lm, prompts, name):
    for budget in (1.0, 0.9):  # what is kept whole is planned by another program than what is cut
        run(lm, prompts[0], policy_of(name, budget), pool_budget=1.0)
    with compilations() as seen:
        held = {run(lm, prompts[1], policy_of(name, b), headroom=NEW, pool_budget=1.0).cache.slots for b in BUDGETS}
    assert programs(seen) == 0 and len(held) == 1


def slots(budget: float) -> int:
    """Slots of the pool of a prompt of SmolLM2-135M with room for the tokens to come."""
    return plan_regions(np.full(SHAPE, int(budget * TOKENS) + LATER), steps=DECODING)[2]


@pytest.mark.parametrize("seed", range(5))
def test_most_neighbours_share_a_class_and_a_class_wastes_little(seed):
    budgets = np.random.default_rng(seed).uniform(0.1, 0.8, 100)
    assert sum(slots(b) == slots(1.01 * b) for b in budgets) >= 70
    exact = [np.prod(SHAPE) * (int(b * TOKENS) + LATER) for b in budgets[:50]]
    ratios = [slots(b) / e for b, e in zip(budgets, exact, strict=False)]
    assert np.mean(ratios) <= 1.07 and min(ratios) >= 1


def test_what_is_allocated_is_what_the_class_says(lm):
    """Bytes of pools with room, over those of slots in use and asked for: a class, the alignment and the slack, no more."""
    pre, rng = kvjax.prefill(lm, ids_of(900, 3)), np.random.default_rng(0)
    for budget in rng.uniform(0.3, 0.8, 8):
        cache = kvjax.compress(pre, policy_of("snapkv", float(budget)), headroom=LATER)
        exact = int((cache.lengths + LATER).sum())
        assert exact * cache.slot_nbytes < cache.nbytes <= 1.0625 * (exact + 8 * cache.lengths.size + 256) * cache.slot_nbytes + 512
        assert cache.room_nbytes >= LATER * cache.lengths.size * cache.slot_nbytes


def test_only_what_grows_may_lie_in_a_pool_larger_than_it_needs(lm, pre):
    """The room of a larger class was asked for, or an eviction has left it: then it is given back."""
    cache = kvjax.compress(pre, policy_of("snapkv"))
    fits, larger = (resize(cache, cache.lengths + NEW, slots, steps=DECODING) for slots in (0, 4096))
    stays = lambda x, grows: decodes_as_it_is(x, cache.lengths + NEW, 0, grows=grows)  # noqa: E731
    assert larger.slots > 4096 > fits.slots
    assert stays(fits, True) and stays(fits, False) and stays(larger, True) and not stays(larger, False)
    assert not decodes_as_it_is(fits, np.asarray(fits.capacity) + 1, 0, grows=True)


def pool_of(cache) -> int:
    return cache.k.unsafe_buffer_pointer()


def test_tokens_that_were_planned_for_move_nothing(lm, pre):
    """Turn after turn the regions stay where they are, in a pool of the same class; the cache given stays valid."""
    policy = policy_of("snapkv")
    cache = kvjax.compress(pre, policy, headroom=3 * NEW)
    moved = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=3 * NEW, stop=())
    tokens, turn, keys = [], cache, np.asarray(cache.k)
    for _ in range(3):
        out = kvjax.decode(lm, turn, policy, max_new_tokens=NEW, stop=())
        assert out.cache.slots == cache.slots == moved.cache.slots and pool_of(out.cache) != pool_of(cache)
        np.testing.assert_array_equal(out.cache.start, cache.start)
        tokens, turn = [*tokens, out.tokens], out.cache
    np.testing.assert_array_equal(np.concatenate(tokens, 1), moved.tokens)
    np.testing.assert_array_equal(turn.logits, moved.cache.logits)
    np.testing.assert_array_equal(cache.k, keys)
    assert (np.asarray(turn.capacity) - turn.lengths < 8).all()


def test_room_that_evictions_leave_is_given_back(lm, pre):
    """A prompt that is cut by the first step holds its slots until the next call, and no longer."""
    policy = policy_of("h2o", 20).replace(when=kvjax.Every(1, after_prefill=False))
    first = kvjax.decode(lm, kvjax.compress(pre, policy, headroom=NEW), policy, max_new_tokens=NEW, stop=()).cache
    then = kvjax.decode(lm, first, policy, max_new_tokens=NEW, stop=()).cache
    assert (first.lengths == 20).all() and np.asarray(first.capacity).min() > 90 > 24 >= np.asarray(then.capacity).max()
    assert then.slots < first.slots


@pytest.mark.parametrize("name", ["adakv", "kivi", slow("d2o"), slow("zipcache")])
def test_pools_are_what_compiled_programs_write(lm, name, monkeypatch):
    """Rows, pages and parts; two prompts, written and moved by NumPy and by programs."""
    policy = policy_of(name)
    pre = kvjax.prefill(lm, [ids_of(90, 1), ids_of(60, 2)], needs=policy)
    ours = kvjax.compress(pre, policy)
    out = kvjax.decode(lm, ours, policy, max_new_tokens=NEW, stop=())
    monkeypatch.setattr(host, "reaches", lambda arrays: False)
    compiled = kvjax.compress(pre, policy)
    for a, b in zip(ours.parts or (ours,), compiled.parts or (compiled,), strict=True):
        _same_rows(a, b)
    then = kvjax.decode(lm, compiled, policy, max_new_tokens=NEW, stop=())
    np.testing.assert_array_equal(out.tokens, then.tokens)
    np.testing.assert_array_equal(out.cache.logits, then.cache.logits)


def _same_rows(a, b) -> None:
    """The slots in use of two caches, pages of them where pools hold pages."""
    np.testing.assert_array_equal(a.start, b.start)
    np.testing.assert_array_equal(a.length, b.length)
    for x, y in zip(jax.tree.leaves(a.pools), jax.tree.leaves(b.pools), strict=True):
        page = a.slots // x.shape[0]
        for start, length in zip(np.asarray(a.start).flat, a.lengths.flat, strict=True):
            mine = slice(start // page, (start + length) // page)
            np.testing.assert_array_equal(x[mine], y[mine])


SCRIPT = """
import kvjax, models
from models import llama
from tests.conftest import ids_of, toy_config
lm, policy = models.random(llama.config(toy_config()), seed=0), kvjax.methods.snapkv(budget=0.5)
print(kvjax.generate(lm, ids_of(60), policy, max_new_tokens=4, stop=()).tokens.tolist())
"""


@pytest.mark.slow
def test_another_process_finds_every_program_in_the_persistent_cache(tmp_path):
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    run = partial(subprocess.run, [sys.executable, "-c", SCRIPT], cwd=Path(__file__).parents[1], env=env, check=True)
    said, held = [], []
    for _ in range(2):
        said.append(run(capture_output=True, text=True).stdout)
        held.append({path.name for path in tmp_path.iterdir() if path.name.endswith("-cache")})
    assert said[0] == said[1] and held[0] == held[1] and any("_loop" in name for name in held[0])
