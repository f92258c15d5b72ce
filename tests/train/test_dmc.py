"""DMC's retrofit: the pass of training with hard decisions is the one that serves; fading, gradients, runs, artefacts, refusals."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.artefacts import retrofitted
from kvjax.artefacts.artefact import load, save
from kvjax.artefacts.retrofit import own_weights, with_weights
from kvjax.evidence import GateValues
from kvjax.gates import KeyNeuron
from kvjax.train import Example, Examples, Frozen, Moment, artefact_of, forward, stacked, train, untrained
from kvjax.train.accumulated import accumulating
from models import llama, mistral
from tests.conftest import ids_of, toy_config
from tests.methods.simulation import kept_by, same_kept
from tests.reference import dmc as slow
from tests.reference.rotary import frequencies
from tests.train.checks import NOW, STEPS, cut_and_taken_up, falls, kept_in, part, slopes, source
from tests.train.conftest import DMC_TOY, texts

OFFSET = DMC_TOY.offset


def hard(layer, logit):
    return 1e6 * logit


def at(step: int, steps: int = 100) -> Moment:
    return Moment(step=jnp.int32(step), key=jax.random.key(0), steps=steps)


@pytest.fixture(scope="module")
def whole(tiny):
    return train(tiny, DMC_TOY, source(), steps=STEPS)


@pytest.mark.slow
def test_a_model_that_merges_nothing_yet_is_the_plain_pass_to_the_bit(tiny):
    """At the start of a run: neurons are read whole, and every token opens a slot."""
    tokens, decide = stacked(texts(2, seed=5)).tokens[0], partial(DMC_TOY.decide, at(0))
    hook = accumulating(tiny.decoder.rope, decide, offset=OFFSET, share=DMC_TOY.read_still(at(0)))
    x, logits = forward(tiny.decoder, tiny.params, tokens, hook=hook, remat=False)
    np.testing.assert_array_equal(np.asarray(x), np.asarray(forward(tiny.decoder, tiny.params, tokens, remat=False)[0]))
    assert all((layer < -1e8).all() for layer in logits)


@pytest.mark.slow
def test_with_hard_decisions_it_is_how_a_prompt_is_read(lm):
    """By the library, and by the transcription in the first layer."""
    ids = ids_of(40, 3)
    inner = accumulating(lm.decoder.rope, hard, offset=OFFSET, share=jnp.float32(0))

    def hook(layer, weights, inputs, attend):
        out, logit = inner(layer, weights, inputs, attend)
        return out, (logit, inputs.q_raw, inputs.k_raw, inputs.v, out)

    x, said = jax.jit(lambda tokens: Frozen.of(lm).forward(tokens, hook=hook))(jnp.asarray([ids]))
    policy = kvjax.methods.dmc(offset=OFFSET)
    pre = kvjax.prefill(lm, ids, needs=policy, all_logits=True)
    got = lm.decoder.unembed(lm.params, x)[0]
    np.testing.assert_allclose(got, pre.rows[0].all_logits[:40], atol=3e-5)
    kept = kept_by(kvjax.compress(pre, policy))
    for (logit, *_), heads in zip(said, kept, strict=True):
        for h in range(2):
            np.testing.assert_array_equal(heads[h], [*np.flatnonzero(np.asarray(logit[0, h, 1:]) <= 0), 39])
    _, q, k, v, out = (np.asarray(y[0]) for y in said[0])
    for h in range(2):
        head = slow.Head(OFFSET, frequencies(toy_config(), 16))
        want = [head.step(q[h, :, t], k[h, t], v[h, t], t) for t in range(40)]
        np.testing.assert_allclose(out[h].swapaxes(0, 1), want, atol=1e-5)


def test_the_run_fades_then_ramps_then_holds():
    learner = replace(DMC_TOY, ratio=4.0, fade=0.2, hold=0.1)
    np.testing.assert_allclose([learner.read_still(at(s)) for s in (0, 8, 16, 20, 99)], [1, 0.5, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose([learner.target(at(s)) for s in (0, 20, 55, 90, 99)], [0, 0, 0.6, 0.75, 0.75], atol=1e-6)
    logit = jnp.full((1, 2, 40), 3.0)
    assert (learner.decide(at(19), 0, logit) < -1e8).all() and (learner.decide(at(20), 0, logit) > -1e3).all()
    assert replace(learner, fade=0.0).read_still(at(0)) == 0


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_gradients_of_the_whole_loss_are_central_differences(tiny, step):
    """Without the share of merges, whose derivative is another function's (`kvjax.train.delayed.evicted_share`)."""
    learner = replace(DMC_TOY, weight=0.0)
    exact, numeric = slopes(tiny, learner, draw=0.0, h=1e-3, moment=at(step, 10))
    assert abs(exact) > 1e-2
    np.testing.assert_allclose(exact, numeric, rtol=3e-2)


@pytest.mark.slow
def test_training_merges_more_and_no_cut_changes_a_bit(tiny, whole, tmp_path):
    before, after = falls(tiny, DMC_TOY, whole.weights)
    assert after["loss"] < before["loss"] - 0.1 and after["hinge"] < before["hinge"] - 0.01
    cut_and_taken_up(tiny, DMC_TOY, tmp_path / "run", whole)


@pytest.mark.slow
def test_a_retrofitted_model_is_served_from_its_folder(tiny, whole, tmp_path):
    folder = kept_in(tmp_path / "dmc", tiny, DMC_TOY, whole.weights)
    made, policy = retrofitted(tiny, folder), kvjax.methods.dmc(artefact=folder)
    assert policy.merge == kvjax.methods.dmc(offset=OFFSET).merge and made.name == f"random-0+dmc-{load(folder).digest}"
    old, new = tiny.params["layers"][0], made.params["layers"][0]
    np.testing.assert_array_equal(new["attention"]["q"]["weight"], whole.weights["layers.0.attention.q.weight"])
    np.testing.assert_array_equal(new["mlp"]["up"]["weight"], old["mlp"]["up"]["weight"])
    cache = kvjax.compress(kvjax.prefill(made, ids_of(40), needs=policy), policy)
    assert (cache.lengths < 40).all()
    two = models.random(llama.config(toy_config(num_hidden_layers=2)), seed=0)
    with pytest.raises(ValueError, match=r"layers: the model has 2, the artefact 1.*kvjax train dmc"):
        retrofitted(two, folder)
    with pytest.raises(ValueError, match="name: the model has 'random-0.dmc"):
        retrofitted(made, folder)


def test_an_artefact_is_served_by_the_model_that_holds_its_weights_alone(lm, tmp_path):
    """Any other model is refused before it reads the prompt, and its prompts before they are cut; without an artefact none is."""
    one, two = (own_artefact(lm, scale) for scale in (1.0, 1.01))
    policy, ids = kvjax.methods.dmc(artefact=one), ids_of(24)
    assert policy == kvjax.methods.dmc(artefact=save(one, tmp_path / "one")) != kvjax.methods.dmc(artefact=two)
    for wrong, holds in ((lm, "the weights it came with"), (retrofitted(lm, two), f"those of {two.origin}")):
        reason = rf"{one.origin}, whose weights are the model's own; this model has {holds}: .*models.load\(\"MODEL\+FOLDER\"\)"
        for refused in (
            lambda: kvjax.prefill(wrong, ids, needs=policy),  # noqa: B023
            lambda: kvjax.prefill(wrong, ids, streaming=policy),  # noqa: B023
            lambda: policy.check(wrong.decoder, 24),  # noqa: B023
        ):
            with pytest.raises(ValueError, match=reason):
                refused()
    mine = retrofitted(lm, one)
    assert mine.decoder.retrofit == models.share_layers(mine, every=1).decoder.retrofit == one.origin
    cache = kvjax.compress(kvjax.prefill(mine, ids, needs=policy), policy)
    plain = kvjax.methods.dmc(offset=OFFSET)
    assert plain.score.gate == GateValues.of(KeyNeuron(), {}) != policy.score.gate
    same_kept(kept_by(cache), kept_by(kvjax.compress(kvjax.prefill(lm, ids, needs=plain), plain)))


def own_artefact(lm, scale: float):
    """The model's own queries as if DMC had trained them."""
    weights = jax.tree.map(lambda x: scale * x, own_weights(lm.params, ("attention.q",)))
    return artefact_of(lm, DMC_TOY, weights, data={}, run={})


def test_own_weights_are_put_back_to_the_bit(lm):
    for paths in ((), ("layers",), ("attention.q", "mlp")):
        weights = own_weights(lm.params, paths)
        jax.tree.map(np.testing.assert_array_equal, with_weights(lm.params, weights), lm.params)
    maps = ("attention.q", "mlp.gate", "mlp.up", "mlp.down")
    assert set(weights) == {f"layers.{layer}.{name}.weight" for layer in range(3) for name in maps}
    assert weights["layers.2.mlp.up.weight"].shape == (96, 64)
    everything, layers = set(own_weights(lm.params)), set(own_weights(lm.params, ("layers",)))
    assert {name.split(".")[0] for name in everything - layers} == set(lm.params) - {"layers"}
    doubled = with_weights(lm.params, {name: 2 * x for name, x in weights.items()})
    old, new = lm.params["layers"][1], doubled["layers"][1]
    np.testing.assert_array_equal(new["mlp"]["up"]["weight"], 2 * old["mlp"]["up"]["weight"])
    np.testing.assert_array_equal(new["attention"]["k"]["weight"], old["attention"]["k"]["weight"])


def test_weights_of_other_shapes_are_refused(lm):
    made = own_artefact(lm, 1.0)
    short = replace(made, tables={name: x[:8] for name, x in made.tables.items()})
    with pytest.raises(ValueError, match=r"layers.0.attention.q.weight: \(64, 64\) in the model, \(8, 64\) given.*train them"):
        retrofitted(lm, short)


@pytest.mark.slow
def test_what_pads_a_text_changes_no_loss(tiny):
    short = Example(tuple(ids_of(24, 1)), (False,) * 12 + (True,) * 12)
    loss = jax.jit(lambda batch: DMC_TOY.loss(untrained(tiny, DMC_TOY), Frozen.of(tiny), batch, NOW))
    alone, padded = (loss(part(tiny, DMC_TOY, [short], n)) for n in (24, 40))
    np.testing.assert_allclose(alone.loss, padded.loss, rtol=1e-5)
    np.testing.assert_allclose(alone.kept, padded.kept, rtol=1e-6)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"ratio": 1.0}, "above 1; got 1.0"),
        ({"fade": 0.6, "hold": 0.4}, "shares of a run that leave some of it; got 0.6 and 0.4"),
        ({"paths": ("attention.z",)}, "a model has no attention.z; it has embed.weight, head.weight, layers.0.attention.k"),
    ],
)
def test_what_cannot_be_is_refused(tiny, changes, reason):
    with pytest.raises(ValueError, match=reason):
        train(tiny, replace(DMC_TOY, **changes), Examples(texts(2)), steps=1)


def test_sliding_windows_are_refused():
    windowed = models.random(mistral.config(toy_config(model_type="mistral", sliding_window=8)), seed=1)
    with pytest.raises(ValueError, match="accumulated slots need full attention"):
        train(windowed, DMC_TOY, Examples(texts(2)), steps=1)
