"""Decoding: loop against stream, sampling, stops, going on from where one left off, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kvjax
from kvjax.decode.sample import Sample
from kvjax.encode import Cast, Stored
from kvjax.generate import encode
from tests.conftest import ids_of, policy_of


@pytest.fixture(scope="module")
def cache(pre):
    return kvjax.compress(pre, policy_of("snapkv"))


def test_stream_gives_what_decode_gives(lm, pre):
    for name in ("snapkv", "h2o"):
        policy = policy_of(name)
        cache = kvjax.compress(pre, policy)
        want = kvjax.decode(lm, cache, policy, max_new_tokens=6, stop=()).tokens
        got = np.stack(list(kvjax.stream(lm, cache, policy, max_new_tokens=6, stop=())), 1)
        np.testing.assert_array_equal(got, want)


def test_stream_ends_at_a_stop_token(lm, cache):
    policy = policy_of("snapkv")
    tokens = kvjax.decode(lm, cache, policy, max_new_tokens=6, stop=()).tokens[0]
    got = [int(t[0]) for t in kvjax.stream(lm, cache, policy, max_new_tokens=6, stop=(int(tokens[2]),))]
    assert got == tokens[: np.argmax(tokens == tokens[2]) + 1].tolist()


def test_two_decodes_are_one(lm, cache):
    policy = policy_of("snapkv")
    whole = kvjax.decode(lm, cache, policy, max_new_tokens=8, stop=())
    first = kvjax.decode(lm, cache, policy, max_new_tokens=5, stop=())
    then = kvjax.decode(lm, first.cache, policy, max_new_tokens=3, stop=())
    np.testing.assert_array_equal(np.concatenate([first.tokens, then.tokens], 1), whole.tokens)


def test_the_cache_given_stays_valid(lm, cache):
    policy, before = policy_of("snapkv"), np.asarray(cache.k)
    a = kvjax.decode(lm, cache, policy, max_new_tokens=4, stop=()).tokens
    b = kvjax.decode(lm, cache, policy, max_new_tokens=4, stop=()).tokens
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(before, cache.k)


def test_logits_are_what_tokens_were_chosen_from(lm, cache):
    out = kvjax.decode(lm, cache, policy_of("snapkv"), max_new_tokens=5, stop=(), return_logits=True)
    assert out.logits.shape == (1, 5, 128)
    np.testing.assert_array_equal(out.logits.argmax(-1), out.tokens)


def test_a_cast_cache_is_half_the_bytes_and_close(lm, pre):
    policy = policy_of("snapkv")
    low = policy.replace(encode=Stored(keys=Cast("bfloat16"), values=Cast("bfloat16")))
    a, b = kvjax.compress(pre, policy), kvjax.compress(pre, low)
    assert b.k.dtype == jnp.bfloat16 and b.k.nbytes * 2 == a.k.nbytes
    x = kvjax.decode(lm, a, policy, max_new_tokens=1, stop=()).cache.logits
    y = kvjax.decode(lm, b, low, max_new_tokens=1, stop=()).cache.logits
    assert 0 < float(jnp.abs(x - y).max()) < 0.3


def test_sampling_is_seeded_and_respects_its_limits(lm, cache):
    policy = policy_of("snapkv")

    def draw(sampler, seed):
        return kvjax.decode(lm, cache, policy, max_new_tokens=12, stop=(), sampler=sampler, key=jax.random.key(seed)).tokens

    np.testing.assert_array_equal(draw(Sample(), 1), draw(Sample(), 1))
    assert (draw(Sample(), 1) != draw(Sample(), 2)).any()
    greedy = kvjax.decode(lm, cache, policy, max_new_tokens=12, stop=()).tokens
    for sampler in (Sample(top_k=1), Sample(top_p=1e-6), Sample(temperature=1e-6)):
        np.testing.assert_array_equal(draw(sampler, 3), greedy)


def test_of_equal_logits_the_lower_ids_are_the_likeliest():
    """As `Greedy` takes the lowest; of six alike the first two are the top two."""
    logits, likely = jnp.zeros((1, 6)).at[0, 0].set(-1.0), Sample(top_k=2)
    drawn = {int(likely(logits, jax.random.key(seed))[0]) for seed in range(20)}
    assert drawn == {1, 2} and int(kvjax.Greedy()(logits, jax.random.key(0))[0]) == 1


def test_with_a_key_a_row_a_row_gets_what_it_gets_alone(lm, cache):
    policy, keys = policy_of("snapkv"), jax.random.split(jax.random.key(5), 3)
    rows = len(cache.position)
    how = dict(max_new_tokens=8, stop=(), sampler=Sample(temperature=2.0))
    beside = kvjax.decode(lm, kvjax.stack([cache] * 3), policy, key=jnp.repeat(keys, rows), **how).tokens
    for i in range(3):
        alone = kvjax.decode(lm, cache, policy, key=jnp.repeat(keys[i : i + 1], rows), **how).tokens
        np.testing.assert_array_equal(beside[i * rows : (i + 1) * rows], alone)
    assert (beside[:rows] != beside[rows : 2 * rows]).any()
    old = kvjax.decode(lm, cache, policy, key=jax.random.PRNGKey(7), **how).tokens
    np.testing.assert_array_equal(old, kvjax.decode(lm, cache, policy, key=jax.random.key(7), **how).tokens)
    with pytest.raises(ValueError, match=f"one for each of {rows} rows; got keys of shape \\(5,\\)"):
        kvjax.decode(lm, cache, policy, key=jax.random.split(jax.random.key(0), 5), **how)


@pytest.mark.parametrize(
    ("sampler", "allowed"),
    [(Sample(), [0, 1, 2, 3]), (Sample(top_k=2), [1, 3]), (Sample(top_p=0.6), [1, 3]), (Sample(top_p=0.4), [3])],
)
def test_samplers_draw_from_the_right_distribution(sampler, allowed):
    p = jnp.asarray([0.1, 0.3, 0.1, 0.5])
    drawn = sampler(jnp.broadcast_to(jnp.log(p), (20_000, 4)), jax.random.key(0))
    share = np.bincount(np.asarray(drawn), minlength=4) / 20_000
    want = np.where(np.isin(np.arange(4), allowed), p, 0)
    np.testing.assert_allclose(share, want / want.sum(), atol=0.015)


def test_the_nucleus_is_of_the_top_k():
    """p = .4, .3, .2, .1: of the two likeliest the first has .57, so that it is the nucleus of .5; of all four it takes two."""
    logits = jnp.broadcast_to(jnp.log(jnp.asarray([0.4, 0.3, 0.2, 0.1])), (1000, 4))
    for sampler, drawn in ((Sample(top_k=2, top_p=0.5), {0}), (Sample(top_p=0.5), {0, 1}), (Sample(top_k=2, top_p=0.6), {0, 1})):
        assert set(np.asarray(sampler(logits, jax.random.key(0))).tolist()) == drawn


def test_a_random_sampler_needs_a_key(lm, cache):
    with pytest.raises(ValueError, match="key=jax.random.key"):
        kvjax.decode(lm, cache, policy_of("snapkv"), sampler=Sample())


@pytest.mark.parametrize("bad", [dict(temperature=0.0), dict(top_p=0.0), dict(top_p=1.5), dict(top_k=-1)])
def test_sampler_arguments(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sample(**bad)


def test_scorers_train_through_the_code_that_serves_them(pre):
    """Expected Attention's eps is a weight: its gradient through the scores is exact, and an optimiser moves it."""
    row = pre.rows[0]
    n = jnp.arange(row.k[0].shape[2], dtype=jnp.int32)
    pos = jnp.broadcast_to(n, row.k[0].shape[:3])
    from kvjax.view import LayerView

    view = LayerView(k=row.k[0], v=row.v[0], pos=pos, valid=pos < 90, length=row.length)

    def loss(scorer):
        u = scorer.score(view, row.evidence[0])
        return ((u - 0.5) ** 2 * view.valid).sum()

    scorer = kvjax.score.ExpectedAttention(future=64, eps=jnp.float32(0.1))
    slope = jax.grad(loss)(scorer)
    h = 1e-2
    numeric = (loss(scorer.replace(eps=scorer.eps + h)) - loss(scorer.replace(eps=scorer.eps - h))) / (2 * h)
    np.testing.assert_allclose(slope.eps, numeric, rtol=1e-2)
    optimiser = optax.sgd(1e-4)
    step, _ = optimiser.update(slope, optimiser.init(scorer))
    assert loss(optax.apply_updates(scorer, step)) < loss(scorer)


def test_generate_takes_ids_and_lists_of_ids(lm):
    policy = policy_of("streaming_llm")
    one = kvjax.generate(lm, ids_of(60, 1), policy, max_new_tokens=4, stop=())
    two = kvjax.generate(lm, [ids_of(60, 1), ids_of(9, 2)], policy, max_new_tokens=4, stop=())
    assert one.tokens.shape == (1, 4) and two.tokens.shape == (2, 4)
    np.testing.assert_array_equal(one.tokens[0], two.tokens[0])
    assert one.info["steps"] == 4 and one.info["nbytes"] == one.cache.nbytes
    same = ids_of(60, 1)
    for ids in (np.array(same), [np.int32(i) for i in same], jnp.array(same), jnp.array([same])):
        np.testing.assert_array_equal(kvjax.generate(lm, ids, policy, max_new_tokens=4, stop=()).tokens, one.tokens)


@pytest.mark.parametrize("prompts", [["a", "bc", "d"], ["a", [7, 8]], [[7, 8], [9]]])
def test_prompts_that_can_be_walked_through_once(prompts):
    """A generator of prompts is what a list of them is: none is lost by looking at it."""

    class Letters:
        def encode(self, text):
            return [ord(letter) for letter in text]

    want = [Letters().encode(x) if isinstance(x, str) else x for x in prompts]
    assert encode(Letters(), prompts) == encode(Letters(), (x for x in prompts)) == want
