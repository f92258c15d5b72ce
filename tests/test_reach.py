"""What a layer's sliding window has left behind goes first, whatever a scorer makes of it."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax import methods
from kvjax.reach import below_all, in_reach, within_reach
from kvjax.stage import Scorer
from tests.conftest import ids_of, windowed

WINDOW, LENGTH = 12, 60
#: Room for a window and for what these methods protect.
BUDGET = WINDOW + 4


def by(scorer) -> kvjax.Policy:
    return kvjax.Policy(score=scorer, select=kvjax.select.TopK(), budget=BUDGET)


@struct.dataclass
class Oldest(Scorer):
    """The first tokens score highest: the worst that a scorer can do to a sliding window."""

    def score(self, view, evidence):
        return -view.pos.astype(jnp.float32)


POLICIES = {
    "oldest": by(Oldest()),
    "h2o": methods.h2o(budget=BUDGET),
    "tova": methods.tova(budget=BUDGET),
    "expected_attention": methods.expected_attention(budget=BUDGET),
    "keydiff": methods.keydiff(budget=BUDGET),
    "knorm": methods.knorm(budget=BUDGET),
    "adakv": methods.adakv(budget=BUDGET, window=4),
    "keyformer": methods.keyformer(budget=BUDGET),
    "oldest while decoding": by(Oldest()).replace(when=kvjax.Every(1)),
    "oldest, keys turned": by(Oldest()).replace(
        when=kvjax.Every(1), encode=kvjax.encode.Stored(positions=kvjax.encode.Unrotated())
    ),
    "d2o": methods.d2o(budget=BUDGET).replace(allocate=kvjax.allocate.Uniform()),
    "cam": methods.cam(budget=BUDGET),
}


@pytest.fixture(scope="module")
def narrow(lm):
    return windowed(lm, (WINDOW,) * 3)


def test_a_slot_is_in_reach_while_the_next_query_sees_it():
    pos, length = jnp.arange(6)[None, None], jnp.asarray([6])
    seen = in_reach(pos, length, jnp.asarray([3]))
    assert seen.tolist() == [[[False] * 4 + [True] * 2]]
    kept = within_reach(jnp.ones((1, 1, 6)), pos, length, jnp.asarray([3]))
    assert (kept == 1).tolist() == seen.tolist() and kept[~seen].max() < -1e38
    assert in_reach(pos, length, None).all() and within_reach(kept, pos, length, None) is kept


def test_what_is_out_of_reach_keeps_its_order_below_all_else():
    u = jnp.asarray([-jnp.inf, -1e30, -2.0, -1.0, -1e-30, 0.0, 1e-30, 1e-6, 0.5, 0.50005, 1.0, 1e30, jnp.inf], jnp.float32)
    below = np.asarray(below_all(u))
    assert np.isfinite(below).all() and (np.diff(below) > 0).all() and below.max() < -1.7e38


@pytest.mark.parametrize("name", POLICIES)
def test_a_budget_of_the_window_loses_nothing(narrow, name):
    """Every layer reads a window of it: the cache of so many slots answers as the full one does."""
    policy, ids = POLICIES[name], ids_of(LENGTH + 6, 5)
    if name == "adakv":  # heads share what they have
        policy = policy.replace(budget=2 * BUDGET)
    full = kvjax.methods.full()
    logits = []
    for each in (policy, full):
        cache = kvjax.compress(kvjax.prefill(narrow, ids[:LENGTH], needs=each), each)
        for token in ids[LENGTH:]:
            cache = kvjax.extend(narrow, cache, [token], each).cache
        logits.append(np.asarray(cache.logits))
    assert cache.length.max() == LENGTH + 6
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("windows", [(None, WINDOW, None), (WINDOW, None, 20)])
def test_only_layers_with_a_window_let_go_of_what_is_behind_it(lm, windows):
    policy = by(Oldest())
    cache = kvjax.compress(kvjax.prefill(windowed(lm, windows), ids_of(LENGTH, 5), needs=policy), policy)
    for layer, window in enumerate(windows):
        for head in range(cache.start.shape[2]):
            start, count = int(cache.start[layer, 0, head]), int(cache.length[layer, 0, head])
            first = 0 if window is None else LENGTH - window + 1
            among = min(BUDGET, LENGTH - first)
            kept = np.sort(np.asarray(cache.pos[start : start + count]))
            assert set(range(first, first + among)) <= set(kept.tolist())


def test_where_windows_count_what_is_kept_nothing_is_behind_one(narrow):
    """Positions by rank: what has been evicted no longer stands between a query and an old token."""
    policy = by(Oldest()).replace(encode=kvjax.encode.Stored(positions=kvjax.encode.InCache()))
    cache = kvjax.compress(kvjax.prefill(narrow, ids_of(LENGTH, 5), needs=policy), policy)
    start, count = int(cache.start[0, 0, 0]), int(cache.length[0, 0, 0])
    assert np.asarray(cache.pos[start : start + count]).tolist() == list(range(BUDGET))


def test_what_is_behind_a_window_is_merged_into_nothing(narrow):
    """All that a window sees stays: what goes is read by nobody, and the values that stay are the text's own."""
    policy = POLICIES["d2o"]
    ids = ids_of(LENGTH, 5)
    pre = kvjax.prefill(narrow, ids, needs=policy)
    merged, dropped = (kvjax.compress(pre, p) for p in (policy, policy.replace(merge=kvjax.merge.Drop())))
    np.testing.assert_array_equal(merged.v, dropped.v)
    wide = kvjax.prefill(windowed(narrow, (None,) * 3), ids, needs=policy)
    merged, dropped = (kvjax.compress(wide, p) for p in (policy, policy.replace(merge=kvjax.merge.Drop())))
    assert (np.asarray(merged.v) != np.asarray(dropped.v)).any()  # it would merge
