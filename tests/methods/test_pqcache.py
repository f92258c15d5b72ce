"""PQCache against its NumPy transcription: k-means, what codes choose, steps, bytes on the device and on the host."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.noise import uniform_at
from kvjax.placement import ByCallback, OnDevice
from kvjax.retrieve.fitted_codebooks import CodedKeys, expected_scores, fitted, group_worth
from kvjax.types import size_class
from tests.conftest import ids_of
from tests.methods import reading
from tests.reference import pqcache as slow

SINKS, LOCAL, TOKENS, BITS = 8, 12, 10, 3


def policy(**changed):
    return kvjax.methods.pqcache(**{"tokens": TOKENS, "local": LOCAL, "sinks": SINKS, "bits": BITS, **changed})


def starts(n, many, seed=0):
    return np.argsort(np.asarray(uniform_at(seed, np.arange(n))), kind="stable")[:many]


def test_two_clusters_by_hand():
    """Points 0, 1, 10, 12 from seeds 0 and 1: means 0 and 23/3, then 1/2 and 11; the codes follow."""
    book, codes = slow.kmeans(np.array([[0.0], [1], [10], [12]]), np.array([[0.0], [1]]), 25)
    np.testing.assert_allclose(book, [[0.5], [11]])
    np.testing.assert_array_equal(codes, [0, 0, 1, 1])
    once, _ = slow.kmeans(np.array([[0.0], [1], [10], [12]]), np.array([[0.0], [1]]), 1)
    np.testing.assert_allclose(once, [[0], [23 / 3]])


def test_worth_by_hand():
    """Heads are added after their softmax: token 1 is second to both and first of the sum."""
    z = jnp.log(jnp.array([[0.6, 0.4, 0, 0], [0, 0.45, 0.55, 0]], jnp.float32) + 1e-30)[None, None]
    np.testing.assert_allclose(group_worth(z, jnp.ones((1, 4), bool))[0, 0], [0.6, 0.85, 0.55, 0], atol=1e-6)
    np.testing.assert_allclose(group_worth(z, jnp.arange(4)[None] < 2)[0, 0], [0.6, 1.4, 0, 0], atol=1e-6)


@pytest.mark.parametrize(("groups", "centroids", "steps"), [(1, 4, 25), (2, 8, 25), (4, 8, 2), (2, 64, 3)])
def test_codebooks_are_the_transcriptions(groups, centroids, steps):
    """Tokens that are not valid are neither fitted nor drawn; of fewer tokens than centroids each is its own."""
    draw = np.random.default_rng(groups)
    k, n = draw.normal(size=(1, 2, 50, 16)).astype(np.float32), 40
    book, codes = fitted(jnp.asarray(k), jnp.arange(50) < n, 3, groups=groups, centroids=centroids, steps=steps)
    at = starts(50, 50, 3)
    at = at[at < n][:centroids]
    for h in range(2):
        parts = np.split(k[0, h, :n].astype(float), groups, axis=1)
        for i, part in enumerate(parts):
            want_book, want_codes = slow.kmeans(part, part[at], steps)
            np.testing.assert_array_equal(codes[0, h, :n, i], want_codes)
            np.testing.assert_allclose(book[h, i, : len(at)], want_book, atol=1e-5)
    assert book.shape == (2, groups, centroids, 16 // groups)


def test_scores_are_of_each_rows_own_codebook():
    draw = np.random.default_rng(1)
    codes, book = draw.integers(0, 8, (3, 2, 70, 2)), draw.normal(size=(3, 2, 2, 8, 8)).astype(np.float32)
    q, count = draw.normal(size=(3, 2, 2, 16)).astype(np.float32), np.array([70, 5, 0])
    mine = CodedKeys(codes=jnp.asarray(codes, jnp.uint8), book=jnp.asarray(book))
    z = np.asarray(expected_scores(jnp.asarray(q), mine, jnp.asarray(count, jnp.int32)))
    for b, h in np.ndindex(3, 2):
        k = np.concatenate([book[b, h, i][codes[b, h, :, i]] for i in range(2)], -1)
        np.testing.assert_allclose(z[b, h, :, : count[b]], (q[b, h] @ k.T / 4)[:, : count[b]], atol=1e-5)
        assert (z[b, h, :, count[b] :] == -np.inf).all()


@pytest.mark.parametrize(("seed", "groups", "home"), [(0, 2, None), (7, 4, ByCallback()), (0, 1, OnDevice())])
def test_steps_are_the_transcriptions(lm, pre, seed, groups, home):
    n = pre.lengths[0]
    last, k_hat = n - LOCAL, {}
    at = starts(size_class(n - SINKS), size_class(n - SINKS), seed)
    at = at[at < n - SINKS][: 1 << BITS]

    def rule(layer, inputs, k, v):
        q, everything = np.asarray(inputs.q, np.float64)[0, :, :, 0], np.arange(k.shape[1])
        if layer not in k_hat:
            k_hat[layer] = [slow.coded(k[h, SINKS:n], at, groups, 25)[: last - SINKS] for h in range(2)]
        between = [SINKS + slow.chosen(q[h], k_hat[layer][h], TOKENS) for h in range(2)]
        near = np.concatenate([everything[:SINKS], everything[last:]])
        return reading.over_lists(q, k, v, lambda h, g: np.concatenate([between[h], near]))

    chosen = policy(seed=seed, groups=groups, **({} if home is None else {"home": home}))
    out = reading.same_as_written_out(lm, pre, chosen, rule)
    np.testing.assert_array_equal(out.cache.retrieval.fetched.total, [64 * 3 * 2 * TOKENS])


@pytest.mark.parametrize("tokens", [82, 1.0, 4096])
def test_reading_everything_is_the_full_cache(lm, pre, tokens):
    reading.reads_everything(lm, pre, policy(tokens=tokens))


@pytest.mark.parametrize("n", [1, 7, 8, 9, 20, 21])
def test_prompts_of_hardly_a_token_between(lm, n):
    """Sinks and the last tokens are all there is, or all but one."""
    reading.reads_everything(lm, kvjax.prefill(lm, ids_of(n)), policy())


def test_shares_are_of_what_is_behind_the_sinks(lm, pre):
    state = kvjax.compress(pre, policy(tokens=0.25, local=0.5)).retrieval
    assert (int(state.held[0]), int(state.wanted[0])) == (82 - 41, 20)


@pytest.mark.parametrize("share", [False, True])
def test_rows_are_what_they_are_alone(lm, share):
    reading.rows_are_solo(lm, policy(**({"tokens": 0.2, "local": 0.1} if share else {})))


def test_a_short_row_beside_long_ones(lm):
    """A prompt of sinks alone, stacked with one whose tokens are elsewhere."""
    chosen, prompts = policy(), [ids_of(6), ids_of(90)]
    how = dict(max_new_tokens=6, stop=(), return_logits=True)
    several = kvjax.stack([kvjax.compress(kvjax.prefill(lm, ids), chosen) for ids in prompts])
    got = kvjax.decode(lm, several, chosen, **how)
    for r, ids in enumerate(prompts):
        alone = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, ids), chosen), chosen, **how)
        np.testing.assert_array_equal(got.tokens[r], alone.tokens[0])
        np.testing.assert_allclose(got.logits[r], alone.logits[0], atol=1e-5)


def test_bytes_are_where_they_are_said_to_be(lm, pre):
    """A byte for each code of a token that is elsewhere, and 2^bits centroids of every head; keys and values are on the host."""
    cache = kvjax.compress(pre, policy())
    state, slot, between = cache.retrieval, 2 * 16 * 4, 90 - SINKS - LOCAL
    assert [x.sharding.memory_kind for x in state.away.stores] == ["pinned_host"] * 2
    assert int(state.away.count.sum()) * state.away.slot_nbytes == 3 * 2 * between * slot
    assert cache.host_nbytes == size_class(3 * 2 * between) * slot
    np.testing.assert_array_equal(cache.lengths[:, 0], np.full((3, 2), SINKS + LOCAL))
    for mine in state.coded:
        assert mine.codes.nbytes == 2 * size_class(between) * 2 and mine.book.nbytes == 2 * 2 * 8 * 8 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"bits": 9}, "1 to 8 bits"), ({"bits": 0}, "1 to 8 bits"), ({"groups": 0}, "at least 1"), ({"steps": 0}, "at least 1"),
     ({"groups": 3}, "do not divide"), ({"tokens": 0}, "at least 1 slot"), ({"sinks": -1}, "sinks")],
)  # fmt: skip
def test_sizes_out_of_range_are_refused(pre, changes, message):
    with pytest.raises(ValueError, match=message):
        kvjax.compress(pre, policy(**changes))


def test_a_budget_that_evicts_and_another_retrievers_cache_are_refused(lm, pre):
    with pytest.raises(ValueError, match="whole prompt"):
        kvjax.compress(pre, policy().replace(budget=0.5))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, kvjax.methods.full()), policy(), max_new_tokens=1)
