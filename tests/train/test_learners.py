"""What the methods learn: open gates are the plain pass to the bit, gradients, a held-out loss that falls, the artefact served."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.allocate import full_heads
from kvjax.artefacts.artefact import load, model_facts, save
from kvjax.artefacts.weights import weights_of
from kvjax.attention_inputs import AttentionInputs
from kvjax.train import Examples, Frozen, Moment, artefact_of, decaying, mean_grade, stacked, train, untrained
from kvjax.train.learners import DuoAttention, MakeEachTokenCount
from kvjax.train.learners.duo_attention import mixed, remembered, streaming
from models import llama
from tests.conftest import ids_of, toy_config
from tests.train.conftest import DUO, TRIM, same, texts

NOW = Moment(step=jnp.int32(0), key=jax.random.key(0), steps=10)
BATCH = jax.tree.map(lambda x: x[0], stacked(texts(2, seed=5)))


def open_weights(lm, learner):
    """Gates that change nothing: β = 1, α = 1."""
    start = untrained(lm, learner)
    if learner is DUO:
        return start
    shut = jax.tree.map(jnp.zeros_like, start)
    return {**shut, "down": {**shut["down"], "bias": jnp.full((3, 2), 200.0)}}


@pytest.mark.parametrize("learner", [TRIM, DUO])
def test_open_gates_are_the_plain_pass_to_the_bit(lm, learner):
    frozen = Frozen.of(lm)
    hook = decaying(TRIM.gate(lm.decoder)) if learner is TRIM else mixed(2, 6)
    plain, full = frozen.forward(BATCH.tokens, hook=remembered)
    weights = open_weights(lm, learner) | ({} if learner is TRIM else {"full": jnp.stack(full)})
    hooked, _ = frozen.forward(BATCH.tokens, hook=hook, gates=weights)
    np.testing.assert_array_equal(np.asarray(plain), np.asarray(frozen.forward(BATCH.tokens)[0]))
    np.testing.assert_array_equal(np.asarray(plain), np.asarray(hooked))
    logits = [frozen.by_blocks(lambda z: z, x, block=16) for x in (plain, hooked)]
    np.testing.assert_array_equal(*map(np.asarray, logits))


@pytest.mark.parametrize("learner", [TRIM, DUO])
def test_open_gates_lose_nothing(lm, learner):
    graded = learner.loss(open_weights(lm, learner), Frozen.of(lm), BATCH, NOW)
    assert graded.terms["kl" if learner is TRIM else "error"] == 0
    np.testing.assert_allclose(graded.kept, 1, rtol=1e-6)


@pytest.mark.parametrize("learner", [TRIM, DUO])
def test_gradients_of_the_whole_loss_are_central_differences(lm, learner):
    frozen, rng = Frozen.of(lm), np.random.default_rng(1)
    weights = jax.tree.map(lambda w: 0.7 * w + 0.05 * rng.random(w.shape).astype(np.float32), untrained(lm, learner))
    along = jax.tree.map(lambda w: jnp.asarray(rng.normal(size=w.shape), jnp.float32), weights)
    loss = jax.jit(lambda weights: learner.loss(weights, frozen, BATCH, NOW).loss)
    slope, h = jax.grad(loss)(weights), 2e-3
    at = lambda h: loss(jax.tree.map(lambda w, d: w + h * d, weights, along))  # noqa: E731
    exact = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(along), strict=True))
    assert abs(exact) > 1e-3
    np.testing.assert_allclose(exact, (at(h) - at(-h)) / (2 * h), rtol=2e-2)


@pytest.mark.parametrize("learner", [TRIM, DUO])
def test_training_lowers_the_loss_on_held_out_texts(lm, learner, source):
    held_out = Examples(texts(4, seed=9), rows=4)
    trained = train(lm, learner, source, steps=25)
    grade = partial(mean_grade, lm, learner, source=held_out, batches=1)
    before, after = grade(untrained(lm, learner)), grade(trained.weights)
    assert after["loss"] < before["loss"] - 0.02 and after["kept"] < before["kept"] - 0.02
    assert [line["step"] for line in trained.log] == list(range(25))


def test_alphas_stay_between_0_and_1(lm, source):
    alpha = train(lm, DuoAttention(sinks=2, recent=6, rate=5.0, weight=100.0), source, steps=3).weights["alpha"]
    assert ((alpha >= 0) & (alpha <= 1)).all() and (alpha == 0).any()
    np.testing.assert_array_equal(DUO.project({"alpha": jnp.array([[-0.5, 1.5, 0.3]])})["alpha"], jnp.array([[0, 1, 0.3]]))


def test_full_attention_is_what_the_full_pass_gave():
    """Of two heads: 0.75 of the 8 that the full pass gave and 0.25 of what streaming attention gives now, 4; all of the latter."""
    weights = {"alpha": jnp.array([0.75, 0.0]), "full": jnp.full((1, 2, 1, 3, 4), 8.0)}
    inputs = AttentionInputs(q=jnp.zeros((1, 2, 1, 3, 4)))
    out, _ = mixed(1, 2)(0, weights, inputs, lambda inputs, bias: jnp.full(inputs.q.shape, 4.0))
    np.testing.assert_array_equal(out[0, 0], 7)
    np.testing.assert_array_equal(out[0, 1], 4)


def test_the_worked_streaming_mask():
    np.testing.assert_array_equal(streaming(6, 1, 2)[0, 0, 0, 5] == 0, [1, 0, 0, 0, 1, 1])


def test_texts_that_a_streaming_head_holds_teach_nothing(lm):
    with pytest.raises(ValueError, match="texts of 8 tokens fit a streaming head of 2 \\+ 6"):
        train(lm, DUO, Examples(texts(2, length=8)), steps=1)


@pytest.mark.parametrize("learner", [TRIM, MakeEachTokenCount(budget=8, hidden=16)])
def test_texts_that_a_budget_holds_teach_no_gate_to_forget(lm, learner):
    """8 tokens are alive at most where 8 may be: nothing is over the budget, whatever the gates say."""
    alive = [jnp.zeros((1, 2, 8))] * 3
    assert learner.price(alive, jax.tree.map(lambda x: x[0], stacked(texts(1, length=8)))) == 0
    with pytest.raises(ValueError, match="texts of 8 tokens fit the 8 that a head may keep alive: nothing to forget"):
        train(lm, learner, Examples(texts(2, length=8)), steps=1)
    learner.check(lm.decoder, 9)


@pytest.fixture(scope="module")
def kept(lm, source, tmp_path_factory):
    """Artefacts of both methods as `kvjax.methods` finds them."""
    found = {}
    for learner in (TRIM, DUO):
        weights = train(lm, learner, source, steps=2).weights
        data = {"source": "random", "sha256": source.digest, "samples": 12, "tokens": 480}
        made = artefact_of(lm, learner, weights, data=data, run={"steps": 2, "seed": 0})
        found[learner.method] = save(made, tmp_path_factory.mktemp("art") / learner.method), weights
    return found


def test_a_trained_gate_is_served_from_its_folder(lm, kept):
    folder, weights = kept["trim_kv"]
    policy = kvjax.methods.trim_kv(budget=12, buffer=2, artefact=str(folder))
    given = kvjax.methods.trim_kv(jax.tree.map(np.asarray, weights), budget=12, buffer=2)
    assert "trim_kv of" in policy.score.gate.origin and same(weights_of(load(folder)), weights)
    pre = kvjax.prefill(lm, ids_of(40), needs=[policy, given])
    for layer in range(3):
        kept_by = [kvjax.compress(pre, p).kept(layer)[0] for p in (policy, given)]
        for h in range(2):
            np.testing.assert_array_equal(kept_by[0][h], kept_by[1][h])
    found = load(folder, "trim_kv", lm)
    assert found.settings["budget"] == 8 and found.settings["steps"] == 2 and found.model == model_facts(lm)
    assert found.data["sha256"] and found.model["tokenizer"] is None


@pytest.mark.parametrize("sparsity", [0.5, 1 / 3])
def test_a_learned_pattern_is_served_from_its_folder(lm, kept, sparsity):
    folder, weights = kept["duo_attention"]
    policy = kvjax.methods.duo_attention(sinks=2, recent=6, sparsity=sparsity, artefact=folder)
    noise = np.linspace(1e-6, 0, 6).reshape(3, 2)
    np.testing.assert_array_equal(policy.allocate.pattern, full_heads(np.float64(weights["alpha"]), sparsity, noise))
    kvjax.compress(kvjax.prefill(lm, ids_of(40)), policy)


def test_equal_alphas_stream_from_the_last(lm, kept):
    equal = load(kept["duo_attention"][0])
    equal.tables["alpha"][:] = 1
    pattern = kvjax.methods.duo_attention(artefact=equal).allocate.pattern
    np.testing.assert_array_equal(pattern, [[1, 1], [1, 0], [0, 0]])


@pytest.mark.parametrize("method", ["trim_kv", "duo_attention"])
def test_an_artefact_of_another_model_is_refused(lm, kept, method):
    folder, _ = kept[method]
    other = models.random(llama.config(toy_config(num_hidden_layers=2, num_key_value_heads=1)), seed=0)
    with pytest.raises(ValueError, match=r"layers: the model has 2, the artefact 3; heads: .*kvjax train"):
        load(folder, method, other)
    renamed = lm.replace(name="somebody-else")
    with pytest.raises(ValueError, match="name: the model has 'somebody-else', the artefact 'random-0'"):
        load(folder, method, renamed)
    policy = getattr(kvjax.methods, method)(artefact=folder)
    with pytest.raises(ValueError, match="not this model's|one flag a KV head"):
        kvjax.compress(kvjax.prefill(other, ids_of(40), needs=policy.replace(score=kvjax.score.Recency())), policy)
    with pytest.raises(ValueError, match="method: wanted"):
        kvjax.methods.compresskv(artefact=folder)
