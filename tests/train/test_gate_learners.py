"""What gates of KVzap, Locret, DBTrimKV and DMS learn: labels and losses by transcription, runs, artefacts, refusals."""

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.artefacts.artefact import load, save
from kvjax.artefacts.weights import weights_of
from kvjax.train import (
    Example,
    Examples,
    Frozen,
    Graded,
    Learner,
    Moment,
    artefact_of,
    decaying,
    mean_grade,
    plain,
    reading,
    stacked,
    train,
    untrained,
)
from kvjax.train.delayed import deciding, token_noise
from kvjax.train.learners.kvzap import spread
from kvjax.train.learners.locret import guessing
from kvjax.train.learners.make_each_token_count import of_layers
from models import llama
from tests.conftest import ids_of, toy_config
from tests.reference import dms as slow_dms
from tests.reference import kvzip, locret
from tests.train.conftest import GATES, KVZAP, Cut, cut_at, same, texts

slow = lambda name: pytest.param(name, marks=pytest.mark.slow)  # noqa: E731
NOW = Moment(step=jnp.int32(3), key=jax.random.key(0), steps=4)
STEPS = 10
names = pytest.mark.parametrize("name", GATES)
one_map = pytest.mark.parametrize("name", [slow(n) if n == "kvzap" else n for n in GATES])
SERVED = {
    "kvzap": dict(window=8, decoding=False), "locret": dict(budget=12, recent=4), "make_each_token_count": dict(budget=12),
    "dms": dict(window=8, decoding=False),
}  # fmt: skip


@pytest.fixture(scope="module")
def small():
    """Two layers."""
    return models.random(llama.config(toy_config(num_hidden_layers=2)), seed=0)


def part(lm, learner, examples, length=None):
    """Examples as one part of a batch, measured."""
    return jax.tree.map(lambda x: x[0], learner.measure(lm, stacked(examples, length=length)))


@pytest.fixture(scope="module")
def kept(tiny, tmp_path_factory):
    """A run of each learner that nothing disturbs: (folder, what it ended with)."""

    @cache
    def of(name):
        folder = tmp_path_factory.mktemp("whole") / "run"
        return folder, train(tiny, GATES[name], Examples(texts(12), rows=2, parts=2), steps=STEPS, folder=folder, every=3)

    return of


# ---- The forward pass


def opened(lm, name, tokens):
    """(hook, weights) of gates that keep everything."""
    learner, start = GATES[name], untrained(lm, GATES[name])
    gate = learner.gate(lm.decoder)
    if name == "make_each_token_count":
        shut = jax.tree.map(jnp.zeros_like, start)
        down = {**shut["down"], "bias": jnp.full_like(shut["down"]["bias"], 200.0)}
        return decaying(gate), of_layers({**shut, "down": down}, lm.decoder.layers)
    if name == "dms":
        alpha = {**start["alpha"], "bias": jnp.full_like(start["alpha"]["bias"], -2.0)}
        return deciding(gate, jax.random.key(0), temperature=0.1, window=6), {**start, "alpha": alpha}
    if name == "locret":
        return guessing(gate, jnp.ones(tokens.shape, bool), lm.decoder.windows), start
    return reading(gate), start


@names
def test_gates_that_keep_all_are_the_plain_pass_to_the_bit(small, name):
    frozen, tokens = Frozen.of(small), stacked(texts(2, seed=5)).tokens[0]
    hook, weights = opened(small, name, tokens)
    run = jax.jit(lambda hook, weights: frozen.forward(tokens, hook=hook, gates=weights)[0], static_argnums=0)
    np.testing.assert_array_equal(np.asarray(run(plain, ())), np.asarray(run(hook, weights)))


def test_what_pads_a_text_changes_no_draw():
    key, logit = jax.random.key(0), jnp.zeros((1, 2, 24))
    long = token_noise(key, jnp.zeros((1, 2, 40)), 0.5)
    np.testing.assert_array_equal(token_noise(key, logit, 0.5), long[..., :24])
    assert len(np.unique(long)) == 80


@pytest.mark.parametrize("name", [slow(n) for n in GATES])
def test_what_pads_a_text_changes_no_loss(tiny, name):
    learner, short = GATES[name], Example(tuple(ids_of(24, 1)), (False,) * 12 + (True,) * 12)
    weights = untrained(tiny, learner)
    loss = jax.jit(lambda batch: learner.loss(weights, Frozen.of(tiny), batch, NOW))
    alone, padded = (loss(part(tiny, learner, [short], length=n)) for n in (24, 40))
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-5)
    for term in alone.terms:
        np.testing.assert_allclose(alone.terms[term], padded.terms[term], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n if n in ("locret", "dms", "kvzap, linear") else slow(n) for n in GATES])
def test_gradients_of_the_whole_loss_are_central_differences(tiny, name):
    """Of DMS without the share of evictions, whose derivative is another function's: see below."""
    learner, rng = GATES[name], np.random.default_rng(1)
    learner = replace(learner, weight=0.0) if name == "dms" else learner
    frozen, batch = Frozen.of(tiny), part(tiny, learner, texts(2, seed=5))
    draw = 2e-3 if name == "dms" else 0.05
    weights = jax.tree.map(lambda w: w + draw * rng.normal(size=w.shape).astype(np.float32), untrained(tiny, learner))
    along = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape), jnp.float32), weights)
    value_and_slope = jax.jit(jax.value_and_grad(lambda weights: learner.loss(weights, frozen, batch, NOW).loss))
    h = 5e-5 if name == "dms" else 2e-3
    up, down = (value_and_slope(jax.tree.map(lambda w, d, h=h: w + h * d, weights, along))[0] for h in (h, -h))
    slope = value_and_slope(weights)[1]
    exact = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(along), strict=True))
    assert abs(exact) > 1e-3
    np.testing.assert_allclose(exact, (up - down) / (2 * h), rtol=3e-2)


# ---- Labels and losses


def dense(lm, ids):
    """Attention inputs of every layer, of ids read at once; float64."""
    names = ("q", "k", "v", "q_raw", "k_raw", "x", "w_o")
    look = lambda layer, weights, inputs, attend: (attend(inputs), [getattr(inputs, name) for name in names])  # noqa: E731
    found = jax.jit(lambda tokens: Frozen.of(lm).forward(tokens, hook=look)[1])(jnp.asarray([ids]))
    return [SimpleNamespace(**{name: np.asarray(x, np.float64) for name, x in zip(names, of, strict=True)}) for of in found]


def test_kvzaps_labels_are_the_transcription(small):
    """A text of 40 tokens in chunks of 24 and 12 behind the first 4; the rows that repeat them count."""
    ids = ids_of(40, 3)
    got = part(small, KVZAP, [Example(tuple(ids), (True,) * 40)]).measured[0]
    for span, asked in (((4, 28), [5, 6, 7]), ((28, 40), [8, 9, *ids[20:28]])):
        passed = dense(small, [*ids, *asked, *ids[slice(*span)]])
        for layer, inputs in enumerate(passed):
            q, own, hidden = inputs.q[0, :, :, 40:], inputs.k[0, :, 40:], np.linalg.norm(inputs.x[0, 40:], axis=-1)
            rows = kvzip.repeat_rows(q, inputs.k[0, :, :4], inputs.k[0, :, slice(*span)], own)[:, :, len(asked) :]
            value = np.linalg.norm(np.einsum("hnd,ehgd->hgne", inputs.v[0, :, slice(*span)], inputs.w_o), axis=-1)
            want = kvzip.output_log_scores(rows, value, hidden[len(asked) :])
            np.testing.assert_allclose(got[layer, :, slice(*span)], want, atol=1e-4)


def test_what_kvzap_explains_is_told_against_a_constant(tiny):
    """One constant a head and text explains nothing."""
    labels = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 2, 9)), jnp.float32)
    told = jnp.broadcast_to(jnp.arange(9) >= jnp.array([4, 2])[:, None, None, None], labels.shape)
    want = np.mean(np.concatenate([np.square(x[m] - x[m].mean()) for x, m in zip(labels.reshape(4, 9), told.reshape(4, 9))]))  # noqa: B905
    np.testing.assert_allclose(spread(labels, told), want, rtol=1e-5)
    loss = jax.jit(lambda weights, batch: KVZAP.loss(weights, Frozen.of(tiny), batch, NOW))
    said = loss(untrained(tiny, KVZAP), part(tiny, KVZAP, texts(1, seed=5))).terms
    assert said["explained"] < 0


def test_a_batch_is_measured_row_by_row(tiny):
    both, one = part(tiny, KVZAP, texts(2, seed=5), length=50), part(tiny, KVZAP, texts(2, seed=5)[1:])
    np.testing.assert_array_equal(both.measured[1, ..., :40], one.measured[0])
    np.testing.assert_array_equal(both.measured[..., 40:], 0)


def test_locrets_loss_is_the_transcription(small):
    learner, batch = GATES["locret"], part(small, GATES["locret"], texts(1, seed=5))
    weights, prompt = untrained(small, learner), np.flatnonzero(~np.asarray(batch.label[0]))
    said = jax.jit(lambda weights, batch: learner.loss(weights, Frozen.of(small), batch, NOW))(weights, batch)
    guesses, labels = [], []
    for layer, inputs in enumerate(dense(small, batch.tokens[0].tolist())):
        here = jax.tree.map(lambda w, layer=layer: np.asarray(w[layer], np.float64), weights)
        guess = np.stack([locret.gate(inputs.q_raw[0, :, :, i], inputs.k_raw[0, :, i], inputs.v[0, :, i], here) for i in prompt])
        z = np.einsum("hgtd,hnd->hgtn", inputs.q[0], inputs.k[0]) / 4
        a = np.exp(np.where(np.tril(np.ones((40, 40), bool)), z, -np.inf))
        rows = (a / a.sum(-1, keepdims=True))[:, :, len(prompt) :, : len(prompt)]
        guesses.append(guess.T)
        labels.append(np.stack([locret.label(of_head) for of_head in rows]))
    np.testing.assert_allclose(said.loss, locret.loss(np.stack(guesses), np.stack(labels)), rtol=1e-5)
    np.testing.assert_allclose(said.terms["neighbours"], sum((np.diff(of_layer) ** 2).mean() for of_layer in guesses), rtol=1e-4)
    np.testing.assert_allclose(said.kept, 8 / len(prompt))


def test_locrets_worked_loss():
    """Two layers of one head: the mean of 0.045 and 0.02, and 0.0025 times the sum of 0.445 and 0.02."""
    guess, label = np.array([[[0.4, 0.9, 0.1]], [[0.1, 0.3, 0.3]]]), np.array([[[0.5, 0.8, 0.6]], [[0.1, 0.5, 0.5828427125]]])
    np.testing.assert_allclose(locret.loss(guess, label), 0.0325 + 0.0025 * 0.465, rtol=1e-6)


@pytest.mark.parametrize("name", ["locret", "kvzap"])
def test_weights_decay_by_a_hundredth_of_the_rate(name):
    """Where nothing has a gradient, at the highest rate of a run."""
    learner, one = replace(GATES[name], rate=0.5), {"w": jnp.ones(1)}
    rule = learner.optimiser(2)
    state, found = rule.init(one), []
    for _ in range(2):
        step, state = rule.update(jax.tree.map(jnp.zeros_like, one), state, one)
        found.append(float(step["w"][0]))
    np.testing.assert_allclose(min(found), -0.005, rtol=1e-5)


def test_dms_attention_is_the_transcription(small):
    learner, tokens = GATES["dms"], jnp.asarray([ids_of(24, 3)])
    weights = jax.tree.map(lambda w: w + 0.02 * jax.random.normal(jax.random.key(1), w.shape), untrained(small, learner))
    inner = deciding(learner.gate(small.decoder), jax.random.key(0), temperature=0.5, window=6)

    def look(layer, weights, inputs, attend):
        out, logit = inner(layer, weights, inputs, attend)
        return out, ((inputs.q, inputs.k, inputs.v), logit, out)

    run = jax.jit(lambda tokens, weights: Frozen.of(small).forward(tokens, hook=look, gates=weights)[1])
    for inputs, logit, out in run(tokens, weights):
        q, k, v = (np.asarray(x[0], np.float64) for x in inputs)
        logit = np.asarray(logit[0], np.float64)
        assert (logit > 0).any() and (logit < 0).any()
        np.testing.assert_allclose(out[0], slow_dms.train(q, k, v, slow_dms.governing(logit), 6), atol=1e-5)


# ---- Runs


@one_map
def test_training_lowers_the_loss_on_held_out_texts(tiny, kept, name):
    learner, held_out = GATES[name], Examples(texts(4, seed=9), rows=4)
    before, after = (mean_grade(tiny, learner, w, held_out, batches=1) for w in (untrained(tiny, learner), kept(name)[1].weights))
    assert after["loss"] < 0.95 * before["loss"]
    assert [line["step"] for line in kept(name)[1].log] == list(range(STEPS))


@one_map
def test_a_run_that_was_cut_ends_with_the_same_bits(tiny, kept, tmp_path, name):
    how = dict(steps=STEPS, folder=tmp_path / "run", every=3)
    source = Examples(texts(12), rows=2, parts=2)
    with pytest.raises(Cut):
        train(tiny, GATES[name], source, report=cut_at(7), **how)
    again = train(tiny, GATES[name], source, resume=True, **how)
    folder, whole = kept(name)
    assert same(again.weights, whole.weights) and again.log == whole.log
    assert (tmp_path / "run/log.jsonl").read_bytes() == (folder / "log.jsonl").read_bytes()


@dataclass(frozen=True)
class Breaking(Learner):
    """A learner whose loss is NaN at step 4."""

    inner: Learner

    method = property(lambda self: self.inner.method)
    budget = property(lambda self: self.inner.budget)

    def init(self, key, model):
        return self.inner.init(key, model)

    def measure(self, lm, batch):
        return self.inner.measure(lm, batch)

    def loss(self, weights, frozen, batch, moment):
        graded = self.inner.loss(weights, frozen, batch, moment)
        return Graded(jnp.where(moment.step == 4, jnp.nan, graded.loss), graded.kept, graded.terms)

    def optimiser(self, steps):
        return self.inner.optimiser(steps)


@pytest.mark.parametrize("name", ["kvzap, linear", slow("dms")])
def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(tiny, tmp_path, name):
    source = Examples(texts(12), rows=2, parts=2)
    with pytest.raises(FloatingPointError) as error:
        train(tiny, Breaking(GATES[name]), source, steps=7, folder=tmp_path / "run", every=2)
    first = np.asarray(source.batch(4).tokens)[0, 0, :8].tolist()
    for said in ("step 4 of 7", "loss nan", "batch 4", source.digest, str(first), str(tmp_path / "run/step-0000004")):
        assert said in str(error.value)
    assert sorted(path.name for path in (tmp_path / "run").glob("step-*")) == ["step-0000002", "step-0000004"]


# ---- Artefacts


@one_map
def test_a_trained_gate_is_served_from_its_folder_and_for_its_model_alone(tiny, kept, tmp_path, name):
    weights, method = kept(name)[1].weights, GATES[name].method
    data = {"source": "random", "sha256": "0", "samples": 12, "tokens": 480}
    folder = save(artefact_of(tiny, GATES[name], weights, data=data, run={"steps": STEPS, "seed": 0}), tmp_path / "gate")
    build = getattr(kvjax.methods, method)
    policy, given = build(artefact=folder, **SERVED[method]), build(jax.tree.map(np.asarray, weights), **SERVED[method])
    assert same(weights_of(load(folder, method, tiny)), weights) and f"{method} of" in policy.score.gate.origin
    pre = kvjax.prefill(tiny, ids_of(40), needs=[policy, given])
    for got, want in zip(*(kvjax.compress(pre, p).kept(0)[0] for p in (policy, given)), strict=True):
        np.testing.assert_array_equal(got, want)
    other = models.random(llama.config(toy_config(num_hidden_layers=2)), seed=0)
    with pytest.raises(ValueError, match=rf"layers: the model has 2, the artefact 1.*kvjax train {method}"):
        load(folder, method, other)
    with pytest.raises(ValueError, match="are not this model's"):
        kvjax.compress(kvjax.prefill(other, ids_of(40), needs=policy.replace(score=kvjax.score.Recency())), policy)


# ---- Refusals


@pytest.mark.parametrize(
    "name, changes, length, reason",
    [
        ("kvzap", {}, 4, "texts of 4 tokens have none behind the 4"),
        ("kvzap", {}, 600, "600 tokens is read twice, and the model's context has 1024"),
        ("dms", {}, 7, "in texts of 7 tokens nothing is more than 6 old"),
        ("dms", {"ratio": 1.0}, 40, "ratio is how many times smaller the cache becomes, above 1; got 1.0"),
    ],
)
def test_what_cannot_teach_is_refused_before_anything_is_traced(small, name, changes, length, reason):
    with pytest.raises(ValueError, match=reason):
        train(small, replace(GATES[name], **changes), Examples(texts(2, length=length)), steps=1)


def test_locret_refuses_texts_without_a_prompt(small):
    everything = Example(tuple(ids_of(20)), (False,) + (True,) * 19)
    with pytest.raises(ValueError, match="19 tokens of answer at least and 1 of prompt.*--data answers"):
        train(small, GATES["locret"], Examples((everything,)), steps=1)


def test_settings_go_into_the_artefact():
    assert isinstance(KVZAP, Learner) and KVZAP.budget is None and GATES["dms"].budget == 0.25
    assert hash(KVZAP) == hash(replace(KVZAP))
