"""Attention-Gate's gates: attention by transcription, the straight-through gradient, runs, artefacts, refusals."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.artefacts.artefact import resolve
from kvjax.train import Example, Examples, Frozen, artefact_of, plain, stacked, train, untrained
from kvjax.train.flagged import flag_penalty, flagging
from kvjax.train.learners import AttentionGate
from tests.conftest import ids_of
from tests.methods.simulation import kept_by
from tests.reference import attention_gate as slow
from tests.reference.softmax import softmax
from tests.train.checks import NOW, STEPS, cut_and_taken_up, falls, kept_in, near, part, slopes, source
from tests.train.conftest import ATTENTION_GATE, texts

FLOOR = 0.05


@pytest.fixture(scope="module")
def whole(tiny):
    return train(tiny, ATTENTION_GATE, source(), steps=STEPS)


def test_gates_that_keep_all_are_the_plain_pass_to_the_bit(tiny):
    learner, tokens = replace(ATTENTION_GATE, bias=200.0), stacked(texts(2, seed=5)).tokens[0]
    hook = flagging(learner.gate(tiny.decoder), learner.decide, sinks=1, floor=learner.floor)
    run = jax.jit(lambda hook, weights: Frozen.of(tiny).forward(tokens, hook=hook, gates=weights)[0], static_argnums=0)
    np.testing.assert_array_equal(np.asarray(run(plain, ())), np.asarray(run(hook, untrained(tiny, learner))))


def test_attention_is_the_transcription(tiny):
    """Of a gate as often sure as not; a hidden token has a share `floor` of its weight."""
    weights = untrained(tiny, replace(ATTENTION_GATE, bias=0.0))
    inner = flagging(ATTENTION_GATE.gate(tiny.decoder), ATTENTION_GATE.decide, sinks=1, floor=FLOOR)

    def look(layer, weights, inputs, attend):
        out, (p, flags) = inner(layer, weights, inputs, attend)
        return out, (inputs.q, inputs.k, inputs.v, inputs.x, p, flags, out)

    run = jax.jit(lambda tokens: Frozen.of(tiny).forward(tokens, hook=look, gates=weights)[1][0])
    q, k, v, x, p, flags, out = (np.asarray(y[0], np.float64) for y in run(jnp.asarray([ids_of(24, 3)])))
    np.testing.assert_allclose(p, slow.probability(x, jax.tree.map(lambda w: np.asarray(w[0]), weights), 2), atol=1e-5)
    np.testing.assert_array_equal(flags, p > 0.5)
    assert 0.1 < flags.mean() < 0.9
    for h in range(2):
        weight = np.where(np.eye(24, dtype=bool) | (flags[h] > 0) | (np.arange(24) < 1), 1.0, FLOOR)
        z = q[h] @ k[h].T / 4 + np.log(np.where(np.tril(np.ones((24, 24))) > 0, weight, 1e-300))
        np.testing.assert_allclose(out[h], softmax(z) @ v[h], atol=1e-5)


@dataclass(frozen=True)
class Around(AttentionGate):
    """Flags as they are at some weights, and what p has moved since: what the straight-through derivative is that of."""

    at: tuple[tuple[float, ...], ...] = ()

    def decide(self, p):
        there = jnp.asarray(self.at, jnp.float32).reshape(p.shape)
        return (there > self.threshold) + (p - there)


def test_gradients_of_the_whole_loss_are_central_differences(tiny):
    learner = replace(ATTENTION_GATE, bias=0.0, floor=FLOOR)
    batch, weights = part(tiny, learner, texts(2, seed=5)), near(tiny, learner, 0.05)
    hook = flagging(learner.gate(tiny.decoder), learner.decide, sinks=1, floor=FLOOR)
    p, flags = jax.jit(lambda batch: Frozen.of(tiny).forward(batch.tokens, hook=hook, gates=weights)[1][0])(batch)
    assert 0.1 < flags.mean() < 0.9
    around = Around(**{**learner.__dict__, "at": tuple(map(tuple, np.asarray(p).reshape(4, -1).tolist()))})
    exact, numeric = slopes(tiny, learner, of=around, draw=0.05, h=5e-4)
    assert abs(exact) > 1e-2
    np.testing.assert_allclose(exact, numeric, rtol=3e-2)


def test_a_flag_of_one_costs_nothing_and_one_of_nothing_its_floor():
    bias = flag_penalty(jnp.array([[[0.0, 1.0, 0.0, 1.0]]]), sinks=1, floor=1e-6)[0, 0, 0]
    np.testing.assert_allclose(bias[3], [0, 0, np.log(1e-6), 0], rtol=1e-2)
    assert bias[2, 2] == 0 and bias[3, 1] == 0


@pytest.mark.slow
def test_training_lowers_the_loss_on_held_out_texts_and_no_cut_changes_a_bit(tiny, whole, tmp_path):
    before, after = falls(tiny, ATTENTION_GATE, whole.weights)
    assert after["loss"] < before["loss"] - 0.05 and after["deviation"] < 0.8 * before["deviation"]
    cut_and_taken_up(tiny, ATTENTION_GATE, tmp_path / "run", whole)


@pytest.mark.slow
def test_what_pads_a_text_changes_no_loss(tiny):
    short = Example(tuple(ids_of(24, 1)), (False,) * 12 + (True,) * 12)
    loss = jax.jit(lambda batch: ATTENTION_GATE.loss(untrained(tiny, ATTENTION_GATE), Frozen.of(tiny), batch, NOW))
    alone, padded = (loss(part(tiny, ATTENTION_GATE, [short], n)) for n in (24, 40))
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-5)
    np.testing.assert_allclose(alone.kept, padded.kept, rtol=1e-6)


@pytest.mark.slow
def test_an_artefact_is_served_with_the_parts_it_was_trained_with(tiny, whole, tmp_path):
    folder = kept_in(tmp_path / "gate", tiny, ATTENTION_GATE, whole.weights)
    policy = kvjax.methods.attention_gate(artefact=folder)
    given = kvjax.methods.attention_gate(jax.tree.map(np.asarray, whole.weights), parts=2)
    assert policy.score.gate.gate == given.score.gate.gate and "attention_gate of" in policy.score.gate.origin
    cache = kvjax.compress(kvjax.prefill(tiny, ids_of(40), needs=policy), policy)
    hook = flagging(ATTENTION_GATE.gate(tiny.decoder), ATTENTION_GATE.decide, sinks=1, floor=1e-6)
    said = Frozen.of(tiny).forward(jnp.asarray([ids_of(40)]), hook=hook, gates=whole.weights)[1][0][1]
    for got, flags in zip(kept_by(cache)[0], said[0], strict=True):
        np.testing.assert_array_equal(got, np.flatnonzero(np.asarray(flags).astype(bool) | np.isin(np.arange(40), (0, 39))))


def test_the_built_in_gate_is_as_wide_as_its_settings_say():
    found = resolve("smollm2-135m", "attention_gate")
    assert found.settings["parts"] * found.settings["width"] == found.tables["q.kernel"].shape[-1] == 32
    gate = kvjax.methods.attention_gate(artefact="smollm2-135m").score.gate.gate
    assert (gate.parts, gate.width) == (2, 16)


def test_facts_of_a_run_hide_no_setting(tiny):
    with pytest.raises(ValueError, match=r"\['parts'\] are settings of attention_gate"):
        artefact_of(tiny, ATTENTION_GATE, untrained(tiny, ATTENTION_GATE), data={}, run={"steps": 1, "parts": 1})


def test_what_cannot_be_is_refused(tiny):
    with pytest.raises(ValueError, match="the share of tokens that stays, between 0 and 1; got 1.5"):
        train(tiny, replace(ATTENTION_GATE, target=1.5), Examples(texts(2)), steps=1)
