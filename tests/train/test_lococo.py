"""LoCoCo's convolution: training cuts a prompt as it is served, gradients, runs, artefacts, refusals."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
import models
from kvjax.train import Example, Examples, Frozen, forward, stacked, train, untrained
from kvjax.train.convolving import Convolving
from models import mistral
from tests.conftest import ids_of, toy_config
from tests.train.checks import STEPS, cut_and_taken_up, falls, kept_in, near, slopes, source
from tests.train.conftest import LOCOCO_TOY, texts

READ = 24


@pytest.fixture(scope="module")
def windowed():
    return models.random(mistral.config(toy_config(model_type="mistral", sliding_window=12, num_hidden_layers=2)), seed=1)


@pytest.fixture(scope="module")
def whole(tiny):
    return train(tiny, LOCOCO_TOY, source(), steps=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("every, recent, which", [(17, 0, "tiny"), (5, 0, "tiny"), (4, 3, "windowed")])
def test_what_follows_reads_what_is_served(request, every, recent, which):
    """24 tokens cut to 8 slots, then 18 known ones with up to four more cuts: the logits are those of decoding from the cache."""
    lm = request.getfixturevalue(which)
    ids, weights = ids_of(READ + 18, 3), near(lm, LOCOCO_TOY, 0.1)
    hook = Convolving(READ, 8, recent, every, lm.decoder.windows)
    x, _ = jax.jit(lambda tokens: Frozen.of(lm).forward(tokens, hook=hook, gates=weights))(jnp.asarray([ids]))
    got = lm.decoder.unembed(lm.params, x)[0]
    policy = kvjax.methods.lococo(jax.tree.map(np.asarray, weights), budget=8, buffer=every - 1, recent=recent)
    pre = kvjax.prefill(lm, ids[:READ], needs=policy, all_logits=True)
    np.testing.assert_allclose(got[:READ], pre.rows[0].all_logits[:READ], atol=3e-5)
    read = kvjax.extend(lm, kvjax.compress(pre, policy), ids[READ:], policy, return_logits=True, block=1)
    np.testing.assert_allclose(got[READ:], read.logits[0, :18], atol=1e-4)


@pytest.mark.slow
def test_where_all_is_held_it_is_the_plain_pass(tiny):
    """To the bit where it is read whole; behind that, keys that are not yet there add zeros in the plain pass alone."""
    tokens, hook = stacked(texts(2, seed=5)).tokens[0], Convolving(READ, 40, 0, 17, tiny.decoder.windows)
    x, _ = forward(tiny.decoder, tiny.params, tokens, hook=hook, gates=untrained(tiny, LOCOCO_TOY), remat=False)
    plain = np.asarray(forward(tiny.decoder, tiny.params, tokens, remat=False)[0])
    np.testing.assert_array_equal(np.asarray(x)[:, :READ], plain[:, :READ])
    np.testing.assert_allclose(x, plain, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("every", [17, 6])
def test_gradients_of_the_whole_loss_are_central_differences(tiny, every):
    exact, numeric = slopes(tiny, replace(LOCOCO_TOY, width=3, every=every), draw=0.0, h=3e-4)
    assert abs(exact) > 1e-3
    np.testing.assert_allclose(exact, numeric, rtol=3e-2)


def test_rates_fall_straight_to_0():
    """Adam moves by its rate where gradients are alike: of 4 steps the first by all of it, the second by three quarters, ..."""
    rule = replace(LOCOCO_TOY, gamma_factor=200.0).optimiser(4)
    weights = {name: jnp.ones(1) for name in ("kernel", "bias", "gamma")}
    state, moved = rule.init(weights), []
    for _ in range(4):
        step, state = rule.update(weights, state)
        moved.append([float(-step[name][0]) for name in ("kernel", "gamma")])
    np.testing.assert_allclose(moved, np.outer([1, 0.75, 0.5, 0.25], [0.1, 0.02]), rtol=1e-4)


def test_a_mixing_weight_stays_a_share():
    """1 - γ + γ = 1 whatever γ is, but of 1.3 the parts are -0.3 and 1.3: 15 cuts would make 1.6^15, a thousand times as much."""
    weights = {"kernel": jnp.full(3, 2.0), "bias": jnp.zeros(3), "gamma": jnp.array([-0.1, 0.4, 1.3])}
    after = LOCOCO_TOY.project(weights)
    np.testing.assert_allclose(after["gamma"], [0.0, 0.4, 1.0])
    np.testing.assert_array_equal(after["kernel"], weights["kernel"])


@pytest.mark.slow
def test_training_lowers_the_loss_and_no_cut_changes_a_bit(tiny, whole, tmp_path):
    """Of the texts it learns from: random ones have nothing in common with others."""
    before, after = falls(tiny, LOCOCO_TOY, whole.weights, texts(12))
    assert after["loss"] < before["loss"] - 0.02
    cut_and_taken_up(tiny, LOCOCO_TOY, tmp_path / "run", whole)


@pytest.mark.slow
def test_an_artefact_is_served(tiny, whole, tmp_path):
    folder = kept_in(tmp_path / "convolution", tiny, LOCOCO_TOY, whole.weights)
    policy = kvjax.methods.lococo(budget=8, artefact=folder)
    given = kvjax.methods.lococo(jax.tree.map(np.asarray, whole.weights), budget=8)
    assert "lococo of" in policy.merge.origin
    pre = kvjax.prefill(tiny, ids_of(40), needs=[policy, given])
    both = [kvjax.decode(tiny, kvjax.compress(pre, p), p, max_new_tokens=4, stop=(), return_logits=True) for p in (policy, given)]
    np.testing.assert_array_equal(both[0].logits, both[1].logits)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"chunk": 32}, "the last 32 are predicted, and 8 slots hold all before them"),
        ({"width": 4}, "width is odd and every at least 1; got 0.5, 4 and 17"),
        ({"every": 0}, "every at least 1; got 0.5, 5 and 0"),
    ],
)
def test_what_cannot_teach_is_refused(tiny, changes, reason):
    with pytest.raises(ValueError, match=reason):
        train(tiny, replace(LOCOCO_TOY, **changes), Examples(texts(2)), steps=1)


def test_texts_of_several_lengths_are_refused(tiny):
    both = (*texts(1), Example(tuple(ids_of(20)), (True,) * 20))
    with pytest.raises(ValueError, match="a text of 20 tokens has nothing to predict behind the first 24"):
        train(tiny, LOCOCO_TOY, Examples(both, rows=2), steps=1)
