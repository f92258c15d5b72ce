"""CriticalKV and CriticalAdaKV against their reference, and the worked example."""

import jax.numpy as jnp
import numpy as np

import kvjax
from kvjax.evidence import ProjectedValueNorm
from kvjax.evidence.numbers import projected_value_norm
from kvjax.score import NoPool
from kvjax.select import TwoStages
from kvjax.view import Ranking
from tests.methods.inputs import layers_of
from tests.reference import criticalkv
from tests.reference.test_examples_criticalkv import U, W
from tests.reference.top_k import sinks_and_recent
from tests.reference.window_attention import window_attention


def ranked(u, second):
    u, second = (jnp.asarray(x, jnp.float32)[None, None, None] for x in (u, second))
    pos = jnp.arange(u.shape[-1], dtype=jnp.int32)[None, None, None]
    return Ranking(u, pos < 0, pos >= 0, pos, second=second)


def test_a5_two_stages():
    for first, kept in [(0.5, [0, 2, 4]), (0.0, [1, 2, 4]), (1.0, [0, 1, 2])]:
        stays = TwoStages(first=first)(ranked(U, (U + 1e-4) * W), jnp.array([[[3]]]))
        assert np.flatnonzero(stays[0, 0, 0]).tolist() == kept


def test_what_a_head_is_sure_of_goes_by_score():
    """The example of the reference: (u + eps) w would give the second slot of the first head to token 2."""
    u, second = np.array([0.05, 0.04, 0.01, 0.01]), np.array([0.05, 0.04, 0.09, 0.01])
    both = ranked(u, second)
    wide = both.replace(**{f: getattr(both, f).repeat(2, 2) for f in ("scores", "protected", "valid", "pos", "second")})
    for safe, kept in [(0.0, [0, 2]), (0.5, [0, 1])]:
        stays = TwoStages(safe=safe)(wide, jnp.array([[[2, 6]]]))
        assert np.flatnonzero(stays[0, 0, 0]).tolist() == kept


def test_a_head_of_few_slots_fills_them_by_score_alone():
    """Heads of 8 and 2 slots are sure of the mean, 5: the second has room for its 2 best, wherever they stand."""
    u = jnp.broadcast_to(jnp.arange(10, dtype=jnp.float32), (1, 1, 2, 10))
    pos = jnp.broadcast_to(jnp.arange(10, dtype=jnp.int32), u.shape)
    ranking = Ranking(scores=u, protected=pos < 0, valid=pos >= 0, pos=pos, second=-u)
    one, other = np.asarray(TwoStages(first=0.0, safe=1.0)(ranking, jnp.array([[[8, 2]]], jnp.int32)))[0, 0]
    assert np.flatnonzero(one).tolist() == [0, 1, 2, 5, 6, 7, 8, 9] and np.flatnonzero(other).tolist() == [8, 9]


def test_a5_projected_norm():
    w_o = jnp.array([[[[1, 0], [0, -1]], [[2, 1], [-1, 0]]]], jnp.float32)  # [h, g, d, e]
    assert projected_value_norm(jnp.array([[[[1.0, 2.0]]]]), w_o.transpose(3, 0, 1, 2))[0, 0, 0] == 2


def test_prompt_and_head_budgets(lm, prompt, pre):
    protected = sinks_and_recent(90, recent=8)
    alone = kvjax.methods.criticalkv(budget=37, window=8)
    adaptive = kvjax.methods.critical_adakv(budget=37, window=8, alpha=0.3)
    caches = [kvjax.compress(pre, policy) for policy in (alone, adaptive)]
    for i, layer in enumerate(layers_of(lm, prompt)):
        w = criticalkv.projected_value_norm(layer.v, layer.w_o)
        np.testing.assert_allclose(pre.rows[0].evidence[i].of(ProjectedValueNorm()).value[0, :, :90], w, rtol=1e-5)
        u = np.pad(window_attention(layer.q, layer.k, window=8), ((0, 0), (0, 8)))
        want = criticalkv.critical(u, w, 37, 18, protected=protected)
        both = criticalkv.critical_adaptive(u, w, 37, alpha=0.3, protected=protected)
        for cache, kept in zip(caches, (want, both), strict=True):
            for got, j in zip(cache.kept(i)[0], kept, strict=True):
                np.testing.assert_array_equal(got, j)


def test_the_whole_budget_in_the_first_stage_is_snapkv(pre):
    one = kvjax.compress(pre, kvjax.methods.criticalkv(budget=30, window=8, first=1.0))
    two = kvjax.compress(pre, kvjax.methods.snapkv(budget=30, window=8))
    for layer in range(3):
        for a, b in zip(one.kept(layer)[0], two.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_norms_of_decoded_tokens_stand_in_their_slots(lm, prompt):
    policy = kvjax.methods.criticalkv(budget=1000, window=8, pool=NoPool()).replace(when=kvjax.Every(1))
    more = [5, 17, 99, 3, 8]
    pre = kvjax.prefill(lm, prompt, needs=policy)
    cache = kvjax.extend(lm, kvjax.compress(pre, policy), more, policy, block=2).cache
    whole = kvjax.prefill(lm, [*prompt, *more], needs=policy)
    for layer in range(3):
        want = np.asarray(whole.rows[0].evidence[layer].of(ProjectedValueNorm()).value[0, :, :95])
        for h in range(2):
            start = int(cache.start[layer, 0, h])
            np.testing.assert_allclose(cache.state.score[1][start : start + 95], want[h], rtol=1e-4)
