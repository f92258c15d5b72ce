"""Merged slots that count as many: a bias in the cache, added wherever a cache is attended over."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax import methods
from kvjax.encode import Cast, OnHost, Stored
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.merge import Average, NoThreshold, OwnLikeness, ProportionalNearest
from kvjax.retrieve import TopP, TopPages
from kvjax.view import LayerView
from tests.conftest import ids_of, policy_of

EVERYTHING = ProportionalNearest(threshold=NoThreshold(), weights=Average())
d2o, hcattention, heterocache = (policy_of(name) for name in ("d2o", "hcattention", "heterocache"))


@pytest.fixture(scope="module")
def two(lm):
    return kvjax.prefill(lm, [ids_of(90), ids_of(61, 5)])


def test_attention_to_tokens_that_are_alike_is_attention_to_what_is_left_of_them():
    """Six different tokens, each there several times: one of each stays."""
    rng = np.random.default_rng(0)
    kind = np.concatenate([np.arange(6), rng.integers(0, 6, 50)])
    of_kind = jnp.asarray(rng.normal(size=(2, 1, 1, 6, 16)), jnp.float32)
    k, v = of_kind[:, :, :, kind]
    view = LayerView.of_prompt(jnp.array([56]), (1, 1, 56), k=k, v=v).replace(bias=jnp.zeros((1, 1, 56)))
    left, _ = EVERYTHING(view, view.pos < 6, jnp.zeros((1, 1, 56)), EVERYTHING.begin(1))
    np.testing.assert_allclose(left.bias[0, 0, :6], np.log(np.bincount(kind)), rtol=1e-6)
    pool = lambda x: jnp.pad(x[0, 0], ((0, 256), *((0, 0),) * (x.ndim - 3)))  # noqa: E731
    q, start, now = jnp.asarray(rng.normal(size=(1, 1, 3, 1, 16)), jnp.float32), jnp.zeros((1, 1), jnp.int32), jnp.array([[99]])
    attend = lambda view, n, **how: ragged_attention(  # noqa: E731
        q, pool(view.k), pool(view.v), pool(view.pos), start, jnp.full((1, 1), n), now, **how
    )
    for got, want in zip(attend(left, 6, bias=pool(left.bias)), attend(view, 56), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)


OWN = pytest.param(EVERYTHING.replace(feature=OwnLikeness()), marks=pytest.mark.slow)


@pytest.mark.parametrize("encode", [Stored(), pytest.param(Stored(placement=OnHost()), marks=pytest.mark.slow)], ids=repr)
@pytest.mark.parametrize("merge", [EVERYTHING, OWN], ids=repr)
def test_no_token_is_lost_count_of(lm, two, merge, encode):
    """All tokens so far, shared out among the slots of every region: at the prompt, and at each of eleven evictions."""
    policy = d2o.replace(merge=merge, encode=encode)
    cache = kvjax.compress(two, policy)
    for steps in (0, 4, 7):
        if steps:
            cache = kvjax.decode(lm, cache, policy, max_new_tokens=steps, stop=()).cache
        counts, position = np.exp(np.asarray(cache.bias)), np.asarray(cache.position)
        start, length = np.asarray(cache.start), cache.lengths
        for layer, row, h in np.ndindex(start.shape):
            held = counts[start[layer, row, h] :][: length[layer, row, h]]
            np.testing.assert_allclose(held.sum(), position[row], rtol=1e-5)
            assert held.min() > 1 - 1e-5 and held.max() > 1.5


def hidden_like(cache, fewer):
    """The cache with a bias of -inf for every slot of the prompt that `fewer` does not hold."""
    bias, pos = np.zeros(cache.slots, np.float32), np.asarray(cache.pos)
    start, length = np.asarray(cache.start), cache.lengths
    for layer in range(len(start)):
        kept = fewer.kept(layer)
        for row, h in np.ndindex(start.shape[1:]):
            region = slice(start[layer, row, h], start[layer, row, h] + length[layer, row, h])
            bias[region][~np.isin(pos[region], kept[row][h])] = -np.inf
    return cache.replace(state=cache.state.replace(bias=jnp.asarray(bias)))


HIDING = {
    "as they are": dict(),
    "in bfloat16": dict(encode=Stored(keys=Cast("bfloat16"), values=Cast("bfloat16"))),
    "values on the host": dict(encode=Stored(placement=OnHost())),
    "codes": dict(encode=hcattention.encode),
    "codes, read by mass": dict(encode=hcattention.encode, retrieve=TopP(tau=1.0)),
    "pages": dict(retrieve=TopPages(token_budget=1.0, page_size=8, skip_layers=1)),
}


@pytest.mark.parametrize("name", HIDING)
def test_a_slot_of_bias_minus_infinity_is_not_there(lm, two, name):
    """Decoding a whole cache with slots hidden is decoding the cache that does not hold them, however it is stored and read."""
    full = methods.full().replace(merge=ProportionalNearest(), **HIDING[name])
    fewer = kvjax.compress(two, policy_of("snapkv").replace(**HIDING[name]))
    some = policy_of("snapkv").replace(**HIDING[name])
    hidden = hidden_like(kvjax.compress(two, full), fewer)
    run = lambda cache, policy: kvjax.decode(lm, cache, policy, max_new_tokens=6, stop=(), return_logits=True)  # noqa: E731
    got, want = run(hidden, full), run(fewer, some)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    assert np.abs(np.asarray(run(kvjax.compress(two, full), full).logits) - want.logits).max() > 1e-2


def test_fetched_tokens_count_as_one(lm, two):
    """HeteroCache brings a satellite's tokens back as they came: what was merged at the prompt is gone, its bias too."""
    policy = heterocache.replace(merge=EVERYTHING, retrieve=heterocache.retrieve.replace(theta=1.5))
    cache = kvjax.compress(two, policy)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=14, stop=()).cache
    assert int(out.retrieval.refreshes.min()) > 0

    def biased(cache, layer, row, h):
        start = int(cache.start[layer, row, h])
        return np.asarray(cache.bias)[start : start + cache.lengths[layer, row, h]].any()

    heads = [(layer, row, h) for layer, h, _ in policy.retrieve.clusters.satellites for row in range(2)]
    assert any(biased(cache, *head) for head in heads) and not any(biased(out, *head) for head in heads)


def test_slots_that_count_as_one_keep_no_statistic(two):
    plain = kvjax.compress(two, d2o)
    many = kvjax.compress(two, d2o.replace(merge=ProportionalNearest()))
    assert plain.bias is None and plain.state.score.shape == (plain.slots,) and many.slot_nbytes == plain.slot_nbytes + 4
    np.testing.assert_array_equal(plain.k, many.k)  # what is merged is the same
    assert many.bias.dtype == jnp.float32
