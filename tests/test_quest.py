"""Quest against its NumPy transcription: bounds, choice, a decode step, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.encode import Cast, OnHost, Stored
from kvjax.kernels.bound_scores import bound_scores
from kvjax.retrieve import OwnPages, SharedPages, TopPages
from kvjax.retrieve.page_bounds import PageBounds, page_bounds
from kvjax.retrieve.top_pages import listed_pages
from tests.conftest import compilations, ids_of, policy_of
from tests.reference import quest as slow

SIZE = 8


def policy(tokens=40, **how):
    return kvjax.methods.quest(token_budget=tokens, page_size=SIZE, **how)


#: E22: the bound is of the box around a page's keys, loose where its corners are no keys.
EXAMPLES = {
    "tight": ((1, -2), [[(1, 0), (0, 1)], [(0, -1), (-1, 0)], [(2, 2), (1, 1)]], [1, 2, 0]),
    "loose": ((1, -1), [[(3, 3), (0, 0)], [(1, 0), (1, 0)], [(-1, -2), (0, 0)]], [3, 1, 2]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_bounds_by_hand(name):
    q, pages, want = EXAMPLES[name]
    keys = jnp.asarray(pages, jnp.float32)
    np.testing.assert_array_equal(slow.bounds(np.array(q, float), np.array(pages, float)), want)
    low, high = keys.min(1)[None, None], keys.max(1)[None, None]
    got = bound_scores(jnp.asarray(q, jnp.float32)[None, None, None], low, high, jnp.array([[len(pages)]], jnp.int32))
    np.testing.assert_array_equal(got[0, 0, 0], want)


def test_no_key_exceeds_its_pages_bound():
    rng = np.random.default_rng(0)
    k, q = rng.normal(size=(104, 16)).astype(np.float32), rng.normal(size=(1, 2, 3, 16)).astype(np.float32)
    start, full = jnp.array([[0, 48]], jnp.int32), jnp.array([[6, 5]], jnp.int32)
    poisoned = np.concatenate([k, np.full((8, 16), np.nan, np.float32)])
    low, high = page_bounds(jnp.asarray(poisoned), start, full, size=SIZE, pages=7)
    u = np.asarray(bound_scores(jnp.asarray(q), low, high, full))
    for h, (first, pages) in enumerate(((0, 6), (48, 5))):
        products = np.einsum("gd,pnd->gpn", q[0, h], k[first : first + pages * SIZE].reshape(pages, SIZE, 16))
        assert (u[0, h, :, :pages] >= products.max(-1) - 1e-5).all()
        for g in range(3):
            want = slow.bounds(q[0, h, g], k[first : first + pages * SIZE].reshape(pages, SIZE, 16))
            np.testing.assert_allclose(u[0, h, g, :pages], want, atol=1e-5)


def test_lists_are_the_best_real_pages():
    bounds = jnp.array([[[[1.0, 5.0, 3.0, 9.0]], [[2.0, 1.0, 0.0, 0.0]]]])
    slots, count = listed_pages(bounds, jnp.array([[3, 1]]), jnp.array([2]), most=2, size=8)
    np.testing.assert_array_equal(count, [[[16], [8]]])
    np.testing.assert_array_equal(slots[0, 0, 0], [*range(8, 16), *range(16, 24)])
    np.testing.assert_array_equal(slots[0, 1, 0, :8], range(8))


@pytest.mark.parametrize("heads", [OwnPages(), SharedPages()])
def test_a_step_reads_what_the_transcription_reads(lm, pre, prompt, heads):
    chosen = policy(skip_layers=0, heads=heads)
    cache = kvjax.decode(lm, kvjax.compress(pre, chosen), chosen, max_new_tokens=5, stop=()).cache
    rng, n, layer = np.random.default_rng(3), len(prompt), 1
    q = 3 * rng.normal(size=(1, 2, 2, 1, 16)).astype(np.float32)
    seen = dict(k=jnp.zeros((1, 2, 1, 16)), v=jnp.zeros((1, 2, 1, 16)), q_raw=jnp.zeros(q.shape), x=jnp.zeros((1, 1, 64)))
    seen |= dict(k_raw=seen["k"], residual=seen["x"], w_o=None)
    position = jnp.asarray([[n + 5]], jnp.int32)
    context = AttendContext(layer=layer, positions=position, window=None, padded_slots=0, encode=Stored())
    out, lse, _ = chosen.retrieve.attend(AttentionInputs(q=jnp.asarray(q), **seen), cache, context)
    k, v = np.asarray(cache.k, np.float64), np.asarray(cache.v, np.float64)
    for h in range(2):
        first, held = int(cache.start[layer, 0, h]), int(cache.length[layer, 0, h])
        mine, values = k[first : first + held], v[first : first + held]
        u = [slow.bounds(q[0, h, g, 0].astype(float), mine[: n // SIZE * SIZE].reshape(-1, SIZE, 16)) for g in range(2)]
        for g in range(2):
            read = slow.slots_read(q[0, h, g, 0].astype(float), mine, n, 4, SIZE)
            if heads == SharedPages():
                best = np.argsort(-np.maximum(*u), kind="stable")[:4, None]
                read = np.concatenate([(best * SIZE + np.arange(SIZE)).ravel(), np.arange(n // SIZE * SIZE, held)])
            assert len(read) == 4 * SIZE + n % SIZE + 5
            np.testing.assert_allclose(out[0, h, g, 0], slow.attend(q[0, h, g, 0].astype(float), mine, values, read), atol=2e-6)
            want = np.log(np.exp(mine[read] @ q[0, h, g, 0] / 4).sum())
            np.testing.assert_allclose(lse[0, h, g, 0], want, atol=2e-6)


@pytest.mark.parametrize("tokens", [90, 1.0, 4096])
def test_reading_everything_is_the_full_cache(lm, pre, tokens):
    chosen, full = policy(tokens), kvjax.methods.full()
    got = kvjax.decode(lm, kvjax.compress(pre, chosen), chosen, max_new_tokens=12, stop=(), return_logits=True)
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=12, stop=(), return_logits=True)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    assert float(got.cache.retrieval.share.min()) == 1.0


def test_the_share_of_a_head_is_of_the_pages_it_has():
    """Queries of the first row read 3 pages, of the second 1; heads have 4, 2 and none, 1, 5 and 3."""
    full = jnp.array([[[4, 2, 0], [1, 5, 3]]], jnp.int32)
    state = PageBounds(low=(), high=(), full=full, pages=jnp.array([3, 1], jnp.int32), most=64, size=SIZE)
    np.testing.assert_allclose(state.share[0], [[3 / 4, 1, 0], [1, 1 / 5, 1 / 3]], rtol=1e-6)


def test_few_pages_are_not_the_full_cache_and_cost_their_bounds(lm, pre):
    chosen, full = policy(24), kvjax.methods.full()
    cache, whole = kvjax.compress(pre, chosen), kvjax.compress(pre, full)
    got = kvjax.decode(lm, cache, chosen, max_new_tokens=4, stop=(), return_logits=True)
    want = kvjax.decode(lm, whole, full, max_new_tokens=4, stop=(), return_logits=True)
    assert float(jnp.abs(got.logits - want.logits).max()) > 1e-3
    np.testing.assert_allclose(cache.retrieval.share, 2 / 11)
    state = cache.retrieval
    assert cache.nbytes - whole.nbytes == sum(x.nbytes for x in (*state.low, *state.high, state.full, state.pages))


def test_rows_are_what_they_are_alone(lm):
    chosen = policy(0.4)
    two, alone = kvjax.prefill(lm, [ids_of(90), ids_of(61, 5)]), kvjax.prefill(lm, ids_of(61, 5))
    how = dict(max_new_tokens=6, stop=(), return_logits=True)
    both, solo = (kvjax.decode(lm, kvjax.compress(x, chosen), chosen, **how) for x in (two, alone))
    np.testing.assert_allclose(both.logits[1], solo.logits[0], atol=2e-5)
    stacked = kvjax.stack([kvjax.compress(kvjax.prefill(lm, ids_of(90)), chosen), kvjax.compress(alone, chosen)])
    np.testing.assert_allclose(kvjax.decode(lm, stacked, chosen, **how).logits, both.logits, atol=2e-5)


@pytest.mark.parametrize("inner", ["snapkv", "adakv", "d2o"])
def test_pages_of_what_was_kept(lm, pre, inner):
    """Bounds are of the keys in the pool: of what a method kept, and of what it merged."""
    chosen = policy_of(inner, 64).replace(when=kvjax.AfterPrefill())
    chosen = chosen.replace(retrieve=TopPages(token_budget=24, page_size=SIZE, skip_layers=1))
    cache = kvjax.compress(pre, chosen)
    state, start = cache.retrieval, np.asarray(cache.start)
    np.testing.assert_array_equal(state.full, cache.lengths // SIZE)
    for layer, h in ((1, 0), (2, 1)):
        keys = np.asarray(cache.k)[start[layer, 0, h] :][: SIZE * int(state.full[layer, 0, h])].reshape(-1, SIZE, 16)
        np.testing.assert_array_equal(state.high[layer - 1][0, h, : len(keys)], keys.max(1))
    assert jnp.isfinite(kvjax.decode(lm, cache, chosen, max_new_tokens=4, stop=(), return_logits=True).logits).all()


def test_tokens_are_data(lm, pre):
    how = dict(max_new_tokens=4, stop=())
    for tokens, programs in ((30, 1), (80, 0), (0.4, 1), (0.9, 0)):
        chosen = kvjax.methods.quest(token_budget=tokens, page_size=24)
        with compilations() as seen:
            kvjax.decode(lm, kvjax.compress(pre, chosen), chosen, **how)
        assert seen.count("jit(_loop)") == programs


WRONG = ({"token_budget": 0}, "at least 1"), ({"token_budget": 1.5}, "share"), ({"page_size": 12}, "multiple of 8")


def test_refusals(lm, pre):
    for wrong, why in WRONG:
        with pytest.raises(ValueError, match=why):
            kvjax.methods.quest(**wrong)
    for encode in (Stored(placement=OnHost()), policy_of("hcattention").encode):
        with pytest.raises(ValueError, match="on the device"):
            kvjax.compress(pre, policy().replace(encode=encode))
    evicting = policy_of("h2o").replace(retrieve=TopPages(page_size=SIZE))
    with pytest.raises(ValueError, match="keep their place"):
        kvjax.decode(lm, kvjax.compress(pre, evicting), evicting, max_new_tokens=2)
    full = kvjax.compress(pre, kvjax.methods.full())
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, full, policy(), max_new_tokens=2)
    for other in (policy(skip_layers=0), kvjax.methods.quest(page_size=2 * SIZE)):
        with pytest.raises(ValueError, match="pages of 8 slots in its last 1 layers"):
            kvjax.decode(lm, kvjax.compress(pre, policy()), other, max_new_tokens=2)
    half = policy().replace(encode=Stored(keys=Cast("bfloat16"), values=Cast("bfloat16")))
    assert kvjax.decode(lm, kvjax.compress(pre, half), half, max_new_tokens=3, stop=()).cache.retrieval.low[0].dtype == jnp.bfloat16
