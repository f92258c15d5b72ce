"""Every scorer crossed with every allocator and merger, after the prompt and while decoding, without a class of its own."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax import allocate, merge, score, select
from tests.conftest import ids_of

SCORERS = {
    "recency": score.Recency(),
    "key norm": score.KeyNorm(),
    "key difference": score.KeyDiff(),
    "window": score.WindowAttention(window=8),
    "window max": score.WindowAttention(window=8, pool=score.MaxPool(3), heads=score.GroupMax()),
    "last query": score.WindowAttention(window=1, pool=score.NoPool(), heads=score.AllMean()),
    "accumulated": score.AccumulatedAttention(),
    "visible mean": score.VisibleMeanAttention(),
    "expected": score.ExpectedAttention(future=64),
}
ALLOCATORS = {
    "uniform": allocate.Uniform(),
    "pyramid": allocate.Pyramid(beta=4, window=4),
    "adaptive": allocate.Adaptive(),
    "adaptive pyramid": allocate.Adaptive(layers=allocate.Pyramid(beta=4, window=4)),
}
MERGERS = {"drop": merge.Drop(), "nearest": merge.NearestKey(threshold=0.1)}
SELECT = select.TopK(sinks=2, recent=4)


@pytest.fixture(scope="module")
def short(lm):
    return kvjax.prefill(lm, ids_of(60, 3))


@pytest.mark.parametrize("merger", MERGERS)
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("scorer", SCORERS)
def test_crossing(short, scorer, allocator, merger):
    policy = kvjax.Policy(
        score=SCORERS[scorer], allocate=ALLOCATORS[allocator], merge=MERGERS[merger], select=SELECT, budget=20
    )  # fmt: skip
    cache = kvjax.compress(short, policy, pool_budget=40)
    assert cache.lengths.sum() == 20 * 3 * 2
    dropped = kvjax.compress(short, policy.replace(merge=merge.Drop()), pool_budget=40)
    for layer, h in itertools.product(range(3), range(2)):
        kept = cache.kept(layer)[0][h]
        assert {0, 1, 56, 57, 58, 59} <= set(kept) and (np.diff(kept) > 0).all()
        np.testing.assert_array_equal(kept, dropped.kept(layer)[0][h])
    np.testing.assert_array_equal(cache.k, dropped.k)
    assert (cache.v == dropped.v).all() == (merger == "drop")


SCHEDULES = [kvjax.Every(1), kvjax.WhenFull(6), kvjax.Every(4, after_prefill=False)]
WHILE_DECODING = [(scorer, merger, kvjax.Every(4)) for scorer in SCORERS for merger in MERGERS]
WHILE_DECODING += [(scorer, "nearest", when) for scorer in ("window", "accumulated") for when in SCHEDULES]


@pytest.mark.parametrize(("scorer", "merger", "when"), WHILE_DECODING)
def test_crossing_while_decoding(lm, short, scorer, merger, when):
    policy = kvjax.Policy(score=SCORERS[scorer], merge=MERGERS[merger], select=SELECT, when=when, budget=20)
    how = dict(max_new_tokens=8, stop=(), return_logits=True, pool_budget=40)  # of one size for all schedules
    out = kvjax.decode(lm, kvjax.compress(short, policy), policy, **how)
    assert jnp.isfinite(out.logits).all()
    held = {"Every": 20, "WhenFull": 22}[type(when).__name__]
    assert (out.cache.lengths == held).all()
    for layer, h in itertools.product(range(3), range(2)):
        kept = out.cache.kept(layer)[0][h]
        assert len(set(kept)) == held and {0, 1, 64, 65, 66, 67} <= set(kept)
        start = int(out.cache.start[layer, 0, h])
        assert set(np.asarray(out.cache.pos[start : start + held])) == set(kept)


def test_swapping_one_stage_changes_only_that_stage(short):
    base = kvjax.methods.snapkv(budget=20, window=8)
    swapped = base.replace(allocate=allocate.Adaptive())
    assert swapped.score == base.score and swapped.select == base.select and swapped != base
    assert kvjax.compress(short, swapped).lengths.std() > 0 == kvjax.compress(short, base).lengths.std()
