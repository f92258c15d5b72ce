"""DMS against its transcription and the authors' numbers: who decides, when it is done, prompt and decode steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.artefacts.artefact import Artefact
from kvjax.artefacts.weights import tables_of
from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence import Evidence
from kvjax.gates import EvictionGate, init_gate
from kvjax.gates.eviction_logit import eviction_logit
from kvjax.gates.gate import read
from kvjax.train.delayed import delayed_penalty
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.method_cases import eviction_gate
from tests.methods.gated import Transcribed, of_layer
from tests.reference import dms as slow
from tests.reference.golden_methods import grouped, load

WINDOW, STEPS = 8, 64
WEIGHTS = eviction_gate()
POLICY = kvjax.methods.dms(WEIGHTS, window=WINDOW)


def recorded(pre, layer):
    """What the gate said of the prompt's tokens, [h, n]."""
    return np.asarray(pre.rows[0].evidence[layer].of(POLICY.score.gate))[0]


@pytest.fixture(scope="module")
def prompted(lm, prompt):
    return kvjax.prefill(lm, prompt, needs=POLICY)


def emitted(layer, x):
    return slow.logit(np.asarray(x, np.float64), of_layer(WEIGHTS, layer)).T


def test_a_gate_is_served_with_the_window_it_was_trained_with():
    """The built-in one learned with 16; given weights, and an artefact that does not say, have the release's 512."""
    trained, silent = (Artefact("dms", {"name": "toy"}, {}, settings, tables_of(WEIGHTS)) for settings in ({"window": 16}, {}))
    dms = kvjax.methods.dms
    for policy, window in (
        (dms(artefact=trained), 16), (dms(artefact="smollm2-135m"), 16), (dms(artefact=trained, window=40), 40),
        (dms(artefact=trained, window=0), 0), (dms(artefact=silent), 512), (dms(WEIGHTS), 512), (dms(WEIGHTS, window=0), 0),
    ):  # fmt: skip
        assert policy.select.recent == window


def test_the_gate_is_its_formula(lm):
    x = np.random.default_rng(0).normal(size=(1, 9, 64)).astype(np.float32)
    for layer in range(3):
        here = jax.tree.map(lambda w, layer=layer: w[layer], WEIGHTS)
        got = read(EvictionGate(heads=2), here, AttentionInputs(residual=jnp.asarray(x)))
        np.testing.assert_allclose(got[0], emitted(layer, x[0]), rtol=2e-4, atol=2e-3)
    start = init_gate(EvictionGate(heads=2), jax.random.key(0), lm.decoder)
    untrained = read(EvictionGate(heads=2), jax.tree.map(lambda w: w[0], start), AttentionInputs(residual=jnp.asarray(x)))
    np.testing.assert_allclose(jax.nn.sigmoid(untrained), 0.006693, atol=5e-7)


def test_prompt_and_64_steps_are_the_transcription(lm, prompted):
    rule = Transcribed(
        prompted,
        lambda: slow.Head(16, window=WINDOW),
        lambda layer, inputs: emitted(layer, np.asarray(inputs.residual)[0]),
        lambda layer: recorded(prompted, layer),
    )
    cache = kvjax.compress(prompted, POLICY)
    rule.check_prompt(cache)
    out = kvjax.decode(lm, cache, POLICY, max_new_tokens=STEPS, stop=(), return_logits=True)
    rule.check_steps(lm, out)
    assert (out.cache.lengths > WINDOW).any() and (out.cache.lengths < 90 + STEPS - WINDOW).all()


def test_a_prompt_in_pieces_decides_as_one(lm):
    """Layer 0, whose inputs no cut changes: the first token of a piece governs the last of the piece before."""
    ids = ids_of(60)
    cache = kvjax.compress(kvjax.prefill(lm, ids[:31], needs=POLICY), POLICY)
    for start, end in ((31, 36), (36, 37), (37, 60)):
        cache = kvjax.extend(lm, cache, [ids[start:end]], POLICY).cache
    whole = kvjax.compress(kvjax.prefill(lm, ids, needs=POLICY), POLICY)
    for a, b in zip(cache.kept(0)[0], whole.kept(0)[0], strict=True):
        np.testing.assert_array_equal(a, b)


def kept(said, *, window, length):
    """Positions that the stages keep of a prompt whose tokens emitted logits [h, n]."""
    stages = kvjax.methods.dms(WEIGHTS, window=window)
    n = said.shape[-1]
    pos = jnp.broadcast_to(jnp.arange(n), (1, *said.shape))
    view = LayerView(k=None, v=None, pos=pos, valid=pos < length, length=jnp.array([length]), state=jnp.zeros(pos.shape))
    evidence = Evidence(data={stages.score.gate.key: jnp.asarray(said, jnp.float32)[None]}, length=view.length, rope=None)
    u = stages.score.observe(view, evidence)
    rule, budget = stages.select, jnp.ones((1, 1, len(said)), jnp.int32)
    ranking = Ranking(scores=u[None], protected=rule.protected(view, budget[0])[None], valid=view.valid[None], pos=pos[None])
    return [np.flatnonzero(row) for row in rule(ranking, budget)[0, 0]]


def faded(said, *, window):
    """What training adds to the logits of each query and key [n, n], rounded to whether it is much."""
    bias = delayed_penalty(jnp.asarray(1000 * said, jnp.float32)[None], window)[0, 0, 0]
    return np.asarray(bias).round(3)


def test_the_worked_flags():
    """Emitted by tokens 0 to 5: 0 1 0 1 0 0, window 2: tokens 0 and 2 go."""
    said = np.array([[-1.0, 1, -1, 1, -1, -1]])
    evicted = slow.governing(said)[0] > 0
    np.testing.assert_array_equal(np.flatnonzero(evicted), [0, 2])
    for query, seen in ((2, [0, 1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (5, [1, 3, 4, 5])):
        np.testing.assert_array_equal(np.flatnonzero(slow.visible(evicted, 2)[query]), seen)
        np.testing.assert_array_equal(faded(said, window=2)[query, : query + 1] == 0, np.isin(np.arange(query + 1), seen))
    np.testing.assert_array_equal(kept(said[:, :4], window=2, length=4)[0], [1, 2, 3])  # and token 4, which query 4 brings
    np.testing.assert_array_equal(kept(said, window=2, length=6)[0], [1, 3, 4, 5])
    np.testing.assert_array_equal(kept(said, window=2, length=3)[0], [1, 2])  # what stands behind the text decides nothing


def test_the_worked_training_numbers():
    np.testing.assert_allclose(slow.penalty(np.array([-5.0, 0, 2])), [-0.006715, -0.693147, -2.126928], atol=5e-7)
    assert [slow.ratio(step) for step in (0, 34, 238, 510)] == [1, 2, 8, 16]
    np.testing.assert_allclose(slow.hinge(np.array([0.9, 0.7, 0.8]), 1 - 1 / slow.ratio(238)), 0.075)
    p = jax.nn.sigmoid(eviction_logit(jnp.array([0, 0.02, 0.1])))
    np.testing.assert_allclose(p, [0.006693, 0.047426, 0.993307], atol=5e-7)


def test_the_authors_decisions_and_what_their_prompt_keeps():
    """The borrowed channel of the first query head of each group; the authors' mask names the first query that misses a key.

    Their model builds its cache for a window of one token more.
    """
    data = load("dms")
    q = (data["hidden"][0] @ data["Wq"].T).reshape(96, 2, 2, 16)
    said = np.asarray(eviction_logit(jnp.asarray(q[:, :, 0, -1].T), float(data["decision_scale"]), float(data["decision_offset"])))
    np.testing.assert_allclose(said, data["decision_logits"], atol=2e-4)
    np.testing.assert_array_equal(said > 0, data["decisions"] > 0)
    evicted, window = slow.governing(said) > 0, int(data["window"]) - 1
    np.testing.assert_array_equal(slow.hidden_from(evicted, window), data["compressed_mask"])
    for row, hidden, gone in zip(kept(said, window=window, length=96), data["compressed_mask"], evicted, strict=True):
        late = gone & (np.arange(96) == 95 - window)  # which the next query is the first to miss
        np.testing.assert_array_equal(row, np.flatnonzero((hidden == 96) & ~late))


def test_the_authors_attention():
    data = load("dms")
    q, k, v = grouped(data["query_rot"], 2), data["key_rot"], data["value_"]
    evicted, window = slow.governing(data["decision_logits"]) > 0, int(data["window"])
    np.testing.assert_allclose(slow.serve(q, k, v, evicted, window - 1), grouped(data["prefill_out"], 2), atol=2e-5)
    trained = slow.train(q, k, v, slow.governing(data["train_logits"]), window)
    np.testing.assert_allclose(trained, grouped(data["train_out"], 2), atol=2e-5)
