"""Layers that read earlier layers' keys and values in training: the worked maps, the pass of the served model, draws, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.train import (
    Example,
    Examples,
    artefact_of,
    forward,
    mean_grade,
    own_weights,
    random_sources,
    routed_forward,
    stacked,
    train,
    with_weights,
)
from kvjax.train.learners import StochasticKVRouting
from models.shared_layers import sources
from tests.conftest import ids_of
from tests.train.conftest import Cut, cut_at, same, texts

TOKENS = jnp.asarray([ids_of(20, 1), ids_of(20, 2)], jnp.int32)


def logits(lm, x):
    return np.asarray(lm.decoder.unembed(lm.params, x))


def test_layers_that_read_themselves_are_the_plain_pass(lm):
    own = jnp.broadcast_to(jnp.arange(3), (2, 3))
    want, _ = forward(lm.decoder, lm.params, TOKENS)
    np.testing.assert_allclose(routed_forward(lm.decoder, lm.params, TOKENS, own), want, atol=1e-5)


@pytest.mark.parametrize("kept", [(0,), (0, 1), (0, 2)])
def test_the_nearest_kept_layers_are_what_is_served(lm, kept):
    source = jnp.broadcast_to(jnp.asarray(sources(3, kept), jnp.int32), (2, 3))
    got = logits(lm, routed_forward(lm.decoder, lm.params, TOKENS, source))
    shared = models.share_layers(lm, kept=kept)
    want = kvjax.prefill(shared, TOKENS.tolist(), all_logits=True)
    for row in range(2):
        np.testing.assert_allclose(got[row], want.rows[row].all_logits[:20], atol=1e-4)


def test_each_row_has_sources_of_its_own(lm):
    maps = jnp.asarray([[0, 0, 1], [0, 1, 0]], jnp.int32)
    both = routed_forward(lm.decoder, lm.params, TOKENS, maps)
    for row in range(2):
        alone = routed_forward(lm.decoder, lm.params, TOKENS[row : row + 1], maps[row : row + 1])
        np.testing.assert_allclose(both[row], alone[0], atol=1e-5)


def test_sources_are_drawn_evenly_below_and_layer_0_reads_itself():
    found = np.asarray(random_sources(jax.random.key(0), 20_000, 4, 0.6))
    assert (found[:, 0] == 0).all() and (found <= np.arange(4)).all()
    for layer in (1, 2, 3):
        share = np.bincount(found[:, layer], minlength=4) / len(found)
        want = [0.6 / layer] * layer + [0.4] + [0.0] * (3 - layer)
        np.testing.assert_allclose(share, want, atol=0.015)
    np.testing.assert_array_equal(random_sources(jax.random.key(0), 5, 4, 0.0), [[0, 1, 2, 3]] * 5)
    assert not (np.asarray(random_sources(jax.random.key(0), 50, 4, 1.0))[:, 1:] == np.arange(1, 4)).any()


def test_no_gradient_reaches_keys_that_nobody_reads(lm):
    """Layer 1 reads layer 0: its own projections of keys and values are told nothing, its queries are."""
    source = jnp.asarray([[0, 0, 2]] * 2, jnp.int32)

    def loss(params):
        return jnp.square(routed_forward(lm.decoder, params, TOKENS, source)).mean()

    found = jax.jit(jax.grad(loss))(lm.params)
    attention = found["layers"][1]["attention"]
    assert not np.any(attention["k"]["weight"]) and not np.any(attention["v"]["weight"]) and np.any(attention["q"]["weight"])
    assert all(np.any(found["layers"][layer]["attention"]["k"]["weight"]) for layer in (0, 2))


LEARNER = StochasticKVRouting(rate=3e-3, warmup=2)


@pytest.mark.slow
def test_a_run_that_was_cut_ends_with_the_same_model(lm, source, tmp_path):
    whole = train(lm, LEARNER, source, steps=4, folder=tmp_path / "whole", every=2)
    how = dict(steps=4, folder=tmp_path / "cut", every=2)
    with pytest.raises(Cut):
        train(lm, LEARNER, source, report=cut_at(2), **how)
    again = train(lm, LEARNER, source, resume=True, **how)
    assert same(again.weights, whole.weights) and again.log == whole.log


def test_a_model_is_trained_kept_and_served(lm, tmp_path):
    """The loss of the texts falls; the artefact is the changed model, and is refused for another."""
    found = Examples(texts(4), rows=4)
    made = train(lm, LEARNER, found, steps=12)
    before, after = (mean_grade(lm, LEARNER, weights, found, batches=1) for weights in (own_weights(lm.params), made.weights))
    assert after["loss"] < 0.8 * before["loss"] and 1 / 3 <= after["kept"] <= 1 and 0 <= after["accuracy"] <= 1
    artefact = artefact_of(lm, LEARNER, made.weights, data={"source": "drawn"}, run={"steps": 12})
    folder = kvjax.artefacts.artefact.save(artefact, tmp_path / "made")
    better = kvjax.artefacts.retrofitted(lm, folder)
    jax.tree.map(np.testing.assert_array_equal, better.params, with_weights(lm.params, made.weights))
    assert (better.params["embed"]["weight"] != lm.params["embed"]["weight"]).any()
    half, policy = models.share_layers(better, kept=(0, 2)), kvjax.methods.snapkv(budget=16, window=8)
    out = kvjax.generate(half, ids_of(30), policy, max_new_tokens=4)
    assert len(out.tokens[0]) == 4
    with pytest.raises(ValueError, match="name: the model has 'else'"):
        kvjax.artefacts.retrofitted(lm.replace(name="else"), folder)


def test_what_cannot_share_is_refused(lm):
    with pytest.raises(ValueError, match="from 0 to 1; got 1.5"):
        StochasticKVRouting(share=1.5).check(lm.decoder, 40)
    import dataclasses

    mixed = models.Decoder(dataclasses.replace(lm.decoder.config, windows=(None, 16, None)))
    with pytest.raises(ValueError, match="cannot read each other"):
        LEARNER.check(mixed, 40)


def test_only_answers_are_learned(lm):
    """What is not labelled does not change the loss."""
    ids = ids_of(12, 3)
    one, two = (Example(tuple(ids[:11] + [last]), (False,) * 5 + (True,) * 6 + (False,)) for last in (1, 2))
    start = own_weights(lm.params)
    first, second = (mean_grade(lm, LEARNER, start, Examples((x,)), batches=1) for x in (one, two))
    assert first["loss"] == second["loss"]
    assert stacked([one]).predicted.sum() == 6
