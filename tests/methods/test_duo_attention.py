"""DuoAttention against its transcription: prompt and decode steps, lengths, bytes, patterns."""

import numpy as np
import pytest

import kvjax
from kvjax.allocate import full_heads
from tests.conftest import ids_of
from tests.eager import dense, run_dense
from tests.reference import duo_attention as duo

GOLDEN = np.load("tests/data/golden_methods/duoattention.npz")
PATTERN = np.array([[True, False], [False, False], [True, True]])
SINKS, RECENT, STEPS = 3, 11, 64
POLICY = kvjax.methods.duo_attention(PATTERN, sinks=SINKS, recent=RECENT)


@pytest.fixture(scope="module")
def decoded(lm, pre):
    return kvjax.decode(lm, kvjax.compress(pre, POLICY), POLICY, max_new_tokens=STEPS, stop=(), return_logits=True)


def transcribed(lm, pre, tokens):
    """(logits after each token, positions held by (layer, head) after each), every head's attention the transcription's."""
    rule, held, outs = duo.Decoding(PATTERN, 16, sinks=SINKS, recent=RECENT), [], {}
    whole = dense(pre, [np.arange(90)] * 3)
    for layer, (k, v) in enumerate(whole):
        rule.extend(layer, np.zeros((2, 2, 90, 16)), k, v)
    held.append({at: head.pos for at, head in rule.heads.items()})

    def watch(layer, q, k, v):
        outs[layer] = rule.extend(layer, q[:, :, None], k[:, -1:], v[:, -1:])[0][:, :, 0]
        if layer == 2:
            held.append({at: head.pos for at, head in rule.heads.items()})

    logits, _ = run_dense(lm, whole, tokens, start=90, change=lambda layer, out, v: outs[layer], watch=watch)
    return logits, held


def test_prompt_and_64_steps_are_the_transcription(lm, pre, decoded):
    want, held = transcribed(lm, pre, decoded.tokens[0])
    np.testing.assert_allclose(decoded.logits[0, 1:], want[:-1], atol=1e-5)
    np.testing.assert_allclose(decoded.cache.logits[0], want[-1], atol=1e-5)
    for cache, positions in ((kvjax.compress(pre, POLICY), held[0]), (decoded.cache, held[-1])):
        for layer, h in np.ndindex(PATTERN.shape):
            np.testing.assert_array_equal(cache.kept(layer)[0][h], positions[layer, h])


def test_streaming_heads_stay_at_their_length_at_every_step_and_full_heads_grow(lm, pre):
    cache = kvjax.compress(pre, POLICY)
    for step, token in enumerate([0, *ids_of(12, 5)]):
        if step:
            cache = kvjax.extend(lm, cache, [token], POLICY, pool_budget=128).cache
        np.testing.assert_array_equal(cache.lengths[:, 0], np.where(PATTERN, 90 + step, SINKS + RECENT))


@pytest.mark.parametrize("budget", [1.0, 20, 64, 10**6])
def test_a_budget_of_the_policy_changes_nothing(lm, budget):
    """Streaming heads hold 2 + 6 tokens at 30 and at 33 tokens, whatever is asked for: the pattern says how many."""
    policy = kvjax.methods.duo_attention(PATTERN, sinks=2, recent=6).replace(budget=budget)
    pre = kvjax.prefill(lm, ids_of(30), needs=policy)
    for cache in (kvjax.compress(pre, policy), kvjax.core.compress(pre, policy, slots=40)):
        np.testing.assert_array_equal(np.asarray(cache.budget)[~PATTERN[:, None]], 8)
        np.testing.assert_array_equal(cache.length[:, 0], np.where(PATTERN, 30, 8))
    end = kvjax.extend(lm, kvjax.compress(pre, policy), [1, 2, 3], policy, block=1).cache
    np.testing.assert_array_equal(end.lengths[:, 0], np.where(PATTERN, 33, 8))


def test_live_buffers_hold_what_the_formula_counts(pre, decoded):
    for cache, n in ((kvjax.compress(pre, POLICY), 90), (decoded.cache, 90 + STEPS)):
        row = (cache.k.nbytes + cache.v.nbytes) // cache.slots
        assert row * cache.lengths.sum() == duo.duo_nbytes(PATTERN, n, 16, sinks=SINKS, recent=RECENT, element=4)
        assert cache.used_nbytes == cache.lengths.sum() * (row + 2)


@pytest.mark.parametrize("length", [1, SINKS, SINKS + RECENT, SINKS + RECENT + 1])
def test_a_short_prompt_grows_until_its_streaming_heads_are_full(lm, length):
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(length, 3)), POLICY)
    for new in range(4):
        n = length + new
        np.testing.assert_array_equal(cache.lengths[:, 0], np.where(PATTERN, n, min(n, SINKS + RECENT)))
        cache = kvjax.extend(lm, cache, [7], POLICY, pool_budget=128).cache


def test_a_row_decodes_as_alone(lm):
    prompts = [ids_of(n, seed=n) for n in (90, 5, 33)]
    batch = kvjax.decode(
        lm, kvjax.compress(kvjax.prefill(lm, prompts), POLICY), POLICY, max_new_tokens=12, stop=(), return_logits=True
    )
    for r, ids in enumerate(prompts):
        cache = kvjax.compress(kvjax.prefill(lm, ids), POLICY)
        alone = kvjax.decode(lm, cache, POLICY, max_new_tokens=12, stop=(), return_logits=True, pool_budget=90)
        np.testing.assert_array_equal(batch.tokens[r], alone.tokens[0])
        np.testing.assert_allclose(batch.logits[r], alone.logits[0], atol=3e-5)
        for layer, h in np.ndindex(PATTERN.shape):
            np.testing.assert_array_equal(batch.cache.kept(layer)[r][h], alone.cache.kept(layer)[0][h])


def test_sparsity_0_is_the_full_cache(lm, pre):
    every = kvjax.methods.duo_attention(full_heads(np.random.default_rng(0).random((3, 2)), 0.0), sinks=1, recent=1)
    full = kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=6, stop=(), return_logits=True)
    got = kvjax.decode(lm, kvjax.compress(pre, every), every, max_new_tokens=6, stop=(), return_logits=True)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    np.testing.assert_array_equal(got.cache.lengths, want.cache.lengths)


def test_sparsity_1_is_streaming_llm(lm, pre):
    none = kvjax.methods.duo_attention(full_heads(np.ones((3, 2)), 1.0), sinks=4, recent=20)
    streaming = kvjax.methods.streaming_llm(budget=24, sinks=4)
    want = kvjax.decode(lm, kvjax.compress(pre, streaming), streaming, max_new_tokens=9, stop=(), return_logits=True)
    got = kvjax.decode(lm, kvjax.compress(pre, none), none, max_new_tokens=9, stop=(), return_logits=True)
    np.testing.assert_array_equal(got.logits, want.logits)


def test_the_worked_pattern():
    alpha = np.array([[0.9, 0.1], [0.4, 0.3], [0.05, 0.7]])
    np.testing.assert_array_equal(full_heads(alpha, 0.5), [[1, 0], [1, 0], [0, 1]])


@pytest.mark.parametrize("percent", [0, 25, 50, 75, 100])
def test_the_release_reads_the_same_pattern_from_its_alphas(percent):
    noise = np.random.default_rng(percent).uniform(0, 1e-6, GOLDEN["alpha"].shape)
    for drawn in (None, noise):
        np.testing.assert_array_equal(full_heads(GOLDEN["alpha"], percent / 100, drawn), GOLDEN[f"full_heads_sp{percent}"])


def test_booleans_and_zeros_and_ones_are_one_pattern():
    same = [kvjax.methods.duo_attention(p, sinks=SINKS, recent=RECENT) for p in (PATTERN.astype(int), PATTERN.tolist())]
    other = kvjax.methods.duo_attention(~PATTERN, sinks=SINKS, recent=RECENT)
    assert all(policy == POLICY and hash(policy) == hash(POLICY) for policy in same)
    assert other != POLICY


def test_a_pattern_of_another_model_is_refused(pre):
    with pytest.raises(ValueError, match=r"FullHeads wants one flag a KV head, \[3, 2\]; got \[2, 3\]"):
        kvjax.compress(pre, kvjax.methods.duo_attention(PATTERN.T, sinks=4, recent=8))


@pytest.mark.parametrize("pattern", [np.array([True, False]), np.array([[0.5, 1.0]]), [[0, 2]]])
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(ValueError, match="zeros and ones, one a KV head"):
        kvjax.methods.duo_attention(pattern)


@pytest.mark.parametrize(("sinks", "recent"), [(0, 0), (-1, 4), (4, -1)])
def test_a_streaming_head_without_slots_is_refused(sinks, recent):
    with pytest.raises(ValueError, match="at least one together"):
        kvjax.methods.duo_attention(PATTERN, sinks=sinks, recent=recent)


@pytest.mark.parametrize("sparsity", [-0.1, 1.5])
def test_a_sparsity_is_a_share(sparsity):
    with pytest.raises(ValueError, match="share of heads that stream"):
        full_heads(np.ones((1, 2)), sparsity)


def test_a_pattern_is_served_with_the_sizes_it_was_trained_with():
    """The built-in one learned with 4 sinks and 28 recent tokens; one that is given has the release's."""
    duo_attention = kvjax.methods.duo_attention
    for policy, sizes in (
        (duo_attention(artefact="smollm2-135m"), (4, 28)), (duo_attention(artefact="smollm2-135m", sinks=0, recent=9), (0, 9)),
        (duo_attention(PATTERN), (64, 256)), (duo_attention(PATTERN, recent=0), (64, 0)),
    ):  # fmt: skip
        assert (policy.select.sinks, policy.select.recent) == sizes
