"""KVzip on the toy model, against the reference fed with the queries and keys of the same passes run densely."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import kvjax
from kvjax.allocate import Uniform
from kvjax.methods.kvzip import head_pattern, head_scores
from kvjax.prefill import RepeatedContext
from tests import eager
from tests.conftest import ids_of, policy_of
from tests.reference import kvzip
from tests.reference.adaptive import adaptive
from tests.reference.softmax import softmax
from tests.reference.top_k import ranking

N, SYSTEM, CHUNK, FIRST, FURTHER = 90, 4, 32, (5, 6, 7), (8, 9)


def passed(lm, prompt, more):
    """(q [l, h, g, r, d], own keys [l, h, r, d], the prompt's keys [l, h, n, d]) of the tokens `more` read behind the prompt."""
    ids, found = prompt + more, []
    x, at = lm.decoder.embed(lm.params, jnp.asarray([ids])), jnp.arange(len(ids))[None]
    for weights in lm.params["layers"]:

        def attend(inputs):
            q, k, v = (np.asarray(y, np.float64)[0] for y in (inputs.q, inputs.k, inputs.v))
            z = np.einsum("hgtd,hnd->hgtn", q, k) / np.sqrt(q.shape[-1])
            p = softmax(np.where(np.tril(np.ones(z.shape[-2:], bool)), z, -np.inf))
            found.append((q[:, :, len(prompt) :], k[:, len(prompt) :], k[:, : len(prompt)]))
            return jnp.asarray(np.einsum("hgtn,hnd->hgtd", p, v)[None], jnp.float32), None

        x, _ = lm.decoder.layer(weights, x, at, attend)
    return [np.stack(y) for y in zip(*found, strict=True)]


def reference_scores(lm, prompt):
    """u [l, h, n - system] of a prompt repeated in chunks of 32 behind 4 tokens; 8 tokens quoted from the second chunk on."""
    parts = kvzip.chunks(len(prompt) - SYSTEM, CHUNK)
    context = prompt[SYSTEM:]
    asked = [[*FIRST, *context[parts[0]]]]
    asked += [[*FURTHER, *context[part.start - 8 : part.start], *context[part]] for part in parts[1:]]
    q, own, keys = zip(*(passed(lm, prompt, more) for more in asked), strict=True)
    return kvzip.scores(q, own, keys[0], system=SYSTEM, size=CHUNK)


@pytest.fixture(scope="module")
def repeated(lm, pre):
    return kvjax.second_pass(lm, pre, policy_of("kvzip"))


@pytest.fixture(scope="module")
def u(lm, prompt):
    return reference_scores(lm, prompt)


def kept_mask(cache):
    """Positions held, [l, h, n]."""
    out = np.zeros((3, 2, N), bool)
    for layer in range(3):
        for h, kept in enumerate(cache.kept(layer)[0]):
            out[layer, h, kept] = True
    return out


def test_scores_of_several_chunks_are_the_reference(repeated, u):
    got = np.asarray(kvjax.score_prompt(repeated, policy_of("kvzip")).rows[0].scores)[:, 0]
    assert [p.stop - p.start for p in kvzip.chunks(N - SYSTEM, CHUNK)] == [32, 32, 22]
    assert_allclose(got[..., SYSTEM:N], u, atol=1e-5)
    assert (got[..., :SYSTEM] == 0).all() and (got[..., N:] == 0).all() and u.max() > 0.2


@pytest.mark.parametrize("budget", [10, 40, 77])
def test_pairs_of_the_whole_model(repeated, u, budget):
    """The published rule keeps int(N ratio) - 1 pairs above a threshold: as many as the budget leaves beside the system prompt."""
    got = kept_mask(kvjax.compress(repeated, policy_of("kvzip", budget)))
    pairs = 6 * (budget - SYSTEM)
    want = kvzip.kept_pairs(u, (pairs + 1) / u.size)
    assert want.sum() == pairs and got.sum() == 6 * budget and got[..., :SYSTEM].all()
    assert_array_equal(got[..., SYSTEM:], want)
    assert len(set(got.sum(-1).reshape(-1).tolist())) > 2


@pytest.mark.parametrize("budget", [5, 40, 0.5])
def test_uniform(repeated, u, budget):
    got = kept_mask(kvjax.compress(repeated, policy_of("kvzip", budget).replace(allocate=Uniform())))
    slots = 45 if budget == 0.5 else budget
    assert_array_equal(got[..., SYSTEM:], kvzip.kept_uniform(u, (slots - SYSTEM) / (N - SYSTEM)))
    assert got[..., :SYSTEM].all()


@pytest.mark.parametrize("budget, alpha", [(12, 0.2), (40, 0.5), (60, 0.0)])
def test_heads_of_adakv(repeated, u, budget, alpha):
    """KVzip's scores and Ada-KV's heads as one policy: the system prompt leads in every head, layers keep what they had."""
    policy = policy_of("kvzip", budget).replace(allocate=kvjax.allocate.Adaptive(alpha=alpha))
    cache = kvjax.compress(repeated, policy)
    protected = np.arange(N) < SYSTEM
    whole = np.concatenate([np.zeros((*u.shape[:2], SYSTEM)), u], -1)
    for layer, scores in enumerate(whole):
        counts = adaptive(scores.astype(np.float32), budget, alpha=alpha, protected=protected)
        assert counts.sum() == 2 * budget
        for h, (got, count) in enumerate(zip(cache.kept(layer)[0], counts, strict=True)):
            assert_array_equal(got, np.sort(ranking(scores[h], protected)[:count]))


def test_heads_told_apart_by_their_highest_score(lm, repeated, u):
    want = u.max(-1)
    assert_allclose(head_scores(repeated, policy_of("kvzip")), want, atol=1e-5)
    for full in range(7):
        pattern = head_pattern(repeated, policy_of("kvzip"), full / 6)
        assert pattern.sum() == full and want[pattern].min(initial=9) >= want[~pattern].max(initial=0)
    pattern = head_pattern(repeated, policy_of("kvzip"), 0.5)
    policy = kvjax.methods.duo_attention(pattern, sinks=4, recent=16)
    assert_array_equal(kvjax.compress(repeated, policy).lengths[:, 0], np.where(pattern, N, 20))
    with pytest.raises(ValueError, match="share"):
        head_pattern(repeated, policy_of("kvzip"), 1.5)


@pytest.mark.parametrize("allocate", [kvjax.allocate.AcrossModel(), Uniform()])
def test_sixty_four_steps_are_a_mask_on_the_dense_model(lm, repeated, allocate):
    policy = policy_of("kvzip", 30).replace(allocate=allocate)
    cache = kvjax.compress(repeated, policy)
    held, out = kept_mask(cache), kvjax.decode(lm, cache, policy, max_new_tokens=64, stop=(), return_logits=True)
    masked = {}

    def watch(layer, q, k, v):
        seen = np.pad(held[layer], ((0, 0), (0, k.shape[1] - N)), constant_values=True)
        masked[layer] = eager.attention(q, k, v, seen[:, None])[0]

    dense = eager.dense(repeated, [np.arange(N)] * 3)
    want, _ = eager.run_dense(lm, dense, out.tokens[0], start=N, change=lambda layer, *_: masked[layer], watch=watch)
    assert_allclose(out.logits[0, 1:], want[:-1], atol=2e-4)
    assert_array_equal(out.tokens[0, 1:], want[:-1].argmax(-1))


def test_a_row_is_what_it_is_alone(lm):
    prompts = [ids_of(n, n) for n in (90, 3, 41, 130)]
    policy = policy_of("kvzip", 0.4)
    both = kvjax.second_pass(lm, kvjax.prefill(lm, prompts), policy)
    scores = kvjax.score_prompt(both, policy)
    for r, ids in enumerate(prompts):
        alone = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)
        assert_array_equal(scores.rows[r].scores, kvjax.score_prompt(alone, policy).rows[0].scores)
    texts = kvjax.generate(lm, prompts, policy, max_new_tokens=6, stop=())
    for r, ids in enumerate(prompts):
        assert_array_equal(texts.tokens[r], kvjax.generate(lm, ids, policy, max_new_tokens=6, stop=()).tokens[0])


def test_the_second_pass_is_asked_for(lm, pre, prompt):
    policy = policy_of("kvzip")
    for one in (pre, kvjax.prefill(lm, prompt, needs=policy)):
        with pytest.raises(ValueError, match=r"(?s)Reconstruction reads .*: run kvjax.second_pass\(lm, pre, policy\)"):
            kvjax.compress(one, policy)
    snapkv = policy_of("snapkv")
    assert kvjax.second_pass(lm, pre, snapkv) is pre
    done = kvjax.second_pass(lm, pre, [snapkv, policy])
    assert kvjax.second_pass(lm, done, policy_of("kvzip", 7)) is done
    other = policy.replace(score=policy.score.replace(repeated=RepeatedContext(chunk=32, first=(5, 6), further=(8, 9))))
    with pytest.raises(ValueError, match="second_pass"):
        kvjax.compress(done, other)


def test_what_does_not_fit_is_refused(lm, pre, repeated):
    with pytest.raises(ValueError, match="chunks of at least 1 token"):
        RepeatedContext(chunk=0)
    with pytest.raises(ValueError, match="no tokenizer"):
        kvjax.second_pass(lm, pre, kvjax.methods.kvzip())
    long = kvjax.prefill(lm, ids_of(1000), needs=set())
    with pytest.raises(ValueError, match="1000 \\+ 35 tokens, more than the model's context of 1024"):
        kvjax.second_pass(lm, long, policy_of("kvzip"))
    with pytest.raises(ValueError, match="scorer of its own"):
        kvjax.compress(repeated, policy_of("kvzip").replace(when=kvjax.Every(1)))
    recent = kvjax.Every(1, score=kvjax.score.Recency())
    policy = policy_of("kvzip").replace(when=recent, allocate=Uniform())
    out = kvjax.decode(lm, kvjax.compress(repeated, policy), policy, max_new_tokens=5, stop=())
    assert (out.cache.lengths == 40).all()


def test_requests_come_from_the_tokenizer_without_its_opening():
    class Words:
        decoder, params, tokenizer = None, None, None

        def encode(self, text):
            return [1, *(3 + len(word) for word in text.split())]

    first, further = RepeatedContext(further=(7, 8)).requests(Words())
    assert 1 not in first and len(first) == 7 and further == (7, 8)
