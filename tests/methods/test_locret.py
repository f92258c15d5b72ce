"""Locret against its transcription: the heads, whole prompts and prompts in pieces, the worked numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.attention_inputs import AttentionInputs
from kvjax.gates import RetainingGate
from kvjax.gates.gate import read
from kvjax.select import TopK
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.method_cases import retaining_gate
from tests.methods.gated import of_layer
from tests.reference import locret as slow
from tests.reference.top_k import sinks_and_recent, top_k

WEIGHTS = retaining_gate()


def inputs_of(seed):
    """The three fields that the gate reads."""
    draw = np.random.default_rng(seed).normal
    some = lambda *shape: jnp.asarray(draw(size=shape), jnp.float32)  # noqa: E731
    return AttentionInputs(q_raw=some(1, 2, 2, 7, 16), k_raw=some(1, 2, 7, 16), v=some(1, 2, 7, 16))


def test_the_gate_is_its_formula():
    for layer in range(3):
        inputs, weights = inputs_of(layer), of_layer(WEIGHTS, layer)
        got = read(RetainingGate(heads=2, hidden=24), {p: {"kernel": WEIGHTS[p]["kernel"][layer]} for p in WEIGHTS}, inputs)
        for token in range(7):
            want = slow.gate(inputs.q_raw[0, :, :, token], inputs.k_raw[0, :, token], inputs.v[0, :, token], weights)
            np.testing.assert_allclose(got[0, :, token], want, rtol=1e-4, atol=1e-5)
        assert got.dtype == jnp.float32


@pytest.mark.parametrize("recent", [0, 8])
def test_a_prompt_keeps_the_best_and_the_last(lm, prompt, recent):
    policy = kvjax.methods.locret(WEIGHTS, budget=24, recent=recent)
    pre = kvjax.prefill(lm, prompt, needs=policy)
    cache = kvjax.compress(pre, policy)
    for layer, h in np.ndindex(3, 2):
        u = np.asarray(pre.rows[0].evidence[layer].of(policy.score.gate))[0, h, :90]
        np.testing.assert_array_equal(cache.kept(layer)[0][h], top_k(u, 24, sinks_and_recent(90, recent=recent)))
    out = kvjax.decode(lm, cache, policy, max_new_tokens=64, stop=())
    np.testing.assert_array_equal(out.cache.lengths, np.full((3, 1, 2), 24 + 64))
    freed = kvjax.compress(pre, kvjax.methods.full()).slots - cache.slots
    assert freed >= 6 * (90 - 24) - 8  # pools are rounded up to eight slots


def test_a_prompt_in_pieces(lm):
    """Layer 0, whose inputs no cut changes: after each piece the best of what was held and of the piece, the last 6 pinned."""
    policy, ids = kvjax.methods.locret(WEIGHTS, budget=24, recent=6, pieces=True), ids_of(90)
    whole = kvjax.prefill(lm, ids, needs=policy)
    cache = kvjax.compress(kvjax.prefill(lm, ids[:30], needs=policy), policy)
    for end in (60, 90):
        cache = kvjax.extend(lm, cache, [ids[end - 30 : end]], policy).cache
    for h in range(2):
        u, held = np.asarray(whole.rows[0].evidence[0].of(policy.score.gate))[0, h, :90], np.zeros(0, int)
        for end in (30, 60, 90):
            held = slow.cut(u, np.append(held, np.arange(end - 30, end)), budget=24, pinned=6)
        np.testing.assert_array_equal(cache.kept(0)[0][h], held)
    answering = kvjax.methods.locret(WEIGHTS, budget=24, recent=6)
    assert (kvjax.decode(lm, cache, answering, max_new_tokens=5, stop=()).cache.lengths == 24 + 5).all()


@pytest.mark.parametrize(("pinned", "want"), [(2, [1, 3, 4, 5]), (0, [1, 2, 3, 5])])
def test_a_piece_by_hand(pinned, want):
    """Scores of six tokens, budget 4, two stabilisers; none after the final piece."""
    u = np.array([0.1, 0.9, 0.3, 0.5, 0.2, 0.7])
    np.testing.assert_array_equal(slow.cut(u, np.arange(6), budget=4, pinned=pinned), want)
    pos = jnp.arange(6)[None, None]
    view = LayerView(k=None, v=None, pos=pos, valid=pos >= 0, length=jnp.array([6]))
    rule, budget = TopK(recent=pinned), jnp.full((1, 1, 1), 4, jnp.int32)
    scores = jnp.asarray(u, jnp.float32)[None, None, None]
    ranking = Ranking(scores=scores, protected=rule.protected(view, budget[0])[None], valid=view.valid[None], pos=pos[None])
    np.testing.assert_array_equal(np.flatnonzero(rule(ranking, budget)), want)


def test_the_worked_label_and_loss():
    rows = np.array([[[0.1, 0.6, 0.3], [0.2, 0.2, 0.6]], [[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]])
    np.testing.assert_allclose(slow.label(rows), [0.5, 0.8, 0.6])
    np.testing.assert_allclose(slow.loss(np.array([[[0.4, 0.9, 0.1]]]), slow.label(rows)[None, None]), 0.0461125, atol=1e-9)
