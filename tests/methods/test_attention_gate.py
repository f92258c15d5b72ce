"""Attention-Gate against its transcription: the gate, prompts whole and in chunks, what is freed, the worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.artefacts.artefact import Artefact
from kvjax.artefacts.weights import tables_of
from kvjax.evidence import HiddenStates
from kvjax.gates import AttentionGate
from kvjax.train.rates import rate_deviation
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.method_cases import attention_gate
from tests.methods.gated import of_layer
from tests.methods.simulation import kept_by, same_kept
from tests.reference import attention_gate as slow

WEIGHTS = attention_gate()


def policy_of(**arguments):
    return kvjax.methods.attention_gate(WEIGHTS, parts=2, **arguments)


def prompted(lm, ids, policy, **how):
    return kvjax.prefill(lm, ids, needs=policy.needs | {HiddenStates()}, **how)


def probabilities(pre, row, causal=True):
    """p [h n] by layer, by the transcription."""
    n = pre.lengths[row]
    states = (np.asarray(e.hidden_states())[0, :n] for e in pre.rows[row].evidence)
    return [slow.probability(x, of_layer(WEIGHTS, layer), 2, causal=causal) for layer, x in enumerate(states)]


SLOW = [pytest.param(*x, marks=pytest.mark.slow) for x in ((True, None), (False, None), (False, 64))]


@pytest.mark.parametrize(("causal", "chunk"), [(True, 64), *SLOW])
def test_prompts_are_the_transcription(lm, causal, chunk):
    policy, ids = policy_of(causal=causal), [ids_of(90), ids_of(7, 1)]
    pre = prompted(lm, ids, policy, chunk=chunk)
    cache, scores = kvjax.compress(pre, policy), kvjax.score_prompt(pre, policy)
    for row, of_row in enumerate(ids):
        want = probabilities(pre, row, causal)
        for layer, p in enumerate(want):
            got = scores.rows[row].scores[layer, 0, :, : len(of_row)]
            np.testing.assert_allclose(got, p, rtol=1e-5, atol=1e-5)
            for h, head in enumerate(p):
                np.testing.assert_array_equal(cache.kept(layer)[row][h], slow.kept(head))


def test_what_goes_is_freed_and_what_comes_stays(lm, prompt):
    policy = policy_of()
    pre = prompted(lm, prompt, policy)
    cache, full = kvjax.compress(pre, policy), kvjax.compress(pre, kvjax.methods.full())
    assert cache.slot_nbytes == full.numbered().slot_nbytes
    assert cache.lengths.sum() < 0.8 * full.lengths.sum() and cache.slots < 0.9 * full.slots
    out = kvjax.decode(lm, cache, policy, max_new_tokens=12, stop=())
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths + 12)


@pytest.mark.slow
def test_a_prompt_read_layer_by_layer_keeps_the_same(lm, prompt):
    policy = policy_of()
    pre = kvjax.prefill(lm, prompt, needs=policy)
    same_kept(kept_by(kvjax.prefill(lm, prompt, streaming=policy)), kept_by(kvjax.compress(pre, policy)))


@pytest.mark.parametrize("forced, want", [(0, [0, 2]), (1, [0, 2, 3])])
def test_t3(forced, want):
    """p .9 .4 .6 .2: flags 1 0 1 0; the mean .525 is .125 above a target of .4."""
    p, select = np.float32([0.9, 0.4, 0.6, 0.2]), policy_of(sinks=forced, recent=forced).select
    np.testing.assert_array_equal(slow.kept(p, forced=bool(forced)), want)
    np.testing.assert_allclose(rate_deviation(jnp.asarray([p.mean()]), 0.4), 0.125, atol=1e-6)
    view = LayerView.of_prompt(jnp.asarray([4], jnp.int32), (1, 1, 4))
    budget = jnp.ones((1, 1, 1), jnp.int32)
    ranking = Ranking(
        scores=jnp.asarray(p)[None, None, None], protected=select.protected(view, budget[0])[None], valid=view.valid[None],
        pos=view.pos[None],
    )  # fmt: skip
    np.testing.assert_array_equal(np.flatnonzero(select(ranking, budget)), want)


def test_as_sure_as_the_threshold_is_not_sure(lm, prompt):
    """p = 1/2 of an untrained gate without a bias: the first and the last token alone."""
    policy = kvjax.methods.attention_gate(jax.tree.map(np.zeros_like, WEIGHTS), parts=2)
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    assert all(head.tolist() == [0, 89] for layer in kept_by(cache) for head in layer)


def test_the_gate_as_training_calls_it(lm, prompt):
    pre = prompted(lm, prompt, policy_of())
    x = pre.rows[0].evidence[1].hidden_states()[:, :90]
    gate = AttentionGate(heads=2, parts=2, width=8)
    logits = gate.apply({"params": jax.tree.map(lambda w: w[1], WEIGHTS)}, x)
    np.testing.assert_allclose(jax.nn.sigmoid(logits[0]), probabilities(pre, 0)[1], rtol=1e-5, atol=1e-5)


def test_what_is_wrong_is_said(lm, prompt):
    with pytest.raises(ValueError, match="3 parts do not share evenly"):
        kvjax.methods.attention_gate(WEIGHTS, parts=3)
    wide = {**WEIGHTS, "out": {name: np.concatenate([w, w], -1) for name, w in WEIGHTS["out"].items()}}
    policy = kvjax.methods.attention_gate(wide, parts=2)
    with pytest.raises(ValueError, match="AttentionGate are not this model's"):
        kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    again = policy_of().replace(when=kvjax.Every(1, grows=True))
    with pytest.raises(ValueError, match="not defined while decoding"):
        kvjax.compress(kvjax.prefill(lm, prompt, needs=again), again)


def test_a_gate_is_served_with_the_numbers_it_was_trained_with():
    gate = kvjax.methods.attention_gate
    trained = Artefact("attention_gate", {"name": "toy"}, {}, {"parts": 2, "threshold": 0.25, "sinks": 3}, tables_of(WEIGHTS))
    for policy, tau, sinks in (
        (gate(artefact=trained), 0.25, 3), (gate(artefact=trained, threshold=0.0, sinks=0), 0.0, 0), (policy_of(), 0.5, 1),
    ):  # fmt: skip
        assert (round(policy.select.tau, 6), policy.select.sinks) == (tau, sinks)
