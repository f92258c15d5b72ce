"""Losses and their terms: the worked numbers, and gradients against central differences in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from kvjax.train import (
    capacity,
    cross_entropy,
    delayed_penalty,
    forward_kl,
    hidden_error,
    l1,
    masked_mean,
    model_capacity,
    neighbours,
    of_ratio,
    rank_correlation,
    rate_deviation,
    rate_hinge,
    ratio_ramp,
    reverse_kl,
    score_kl,
    smooth_l1,
    smooth_l1_with_neighbours,
    squared_error,
)
from kvjax.train.delayed import evicted_share
from kvjax.train.learner import Moment
from kvjax.train.learners import DMS
from tests.reference import make_each_token_count

RNG = np.random.default_rng(0)
DRAWN = {name: jnp.asarray(RNG.normal(size=(3, 5)), jnp.float32) for name in ("x", "y")}
TARGET = jnp.array([1, 4, 0], jnp.int32)
MASK = jnp.array([[1, 0, 1, 1, 0]] * 3, bool)
#: Every loss as one number of x [3, 5], at a place where it has a derivative.
LOSSES = {
    "forward_kl": lambda x, y: forward_kl(y, x).mean(),
    "forward_kl, teacher": lambda x, y: forward_kl(x, y).mean(),
    "reverse_kl": lambda x, y: reverse_kl(y, x).mean(),
    "cross_entropy": lambda x, y: cross_entropy(x, TARGET).mean(),
    "hidden_error": lambda x, y: hidden_error(y, x).sum(),
    "masked_mean": lambda x, y: masked_mean(x**2, MASK),
    "smooth_l1": lambda x, y: smooth_l1(2 * x, y).sum(),
    "neighbours": lambda x, y: neighbours(x).sum(),
    "smooth_l1_with_neighbours": lambda x, y: smooth_l1_with_neighbours(x, y, weight=0.3),
    "score_kl": lambda x, y: score_kl(jnp.exp(y), jnp.exp(x)).sum(),
    "score_kl, wanted": lambda x, y: score_kl(jnp.exp(x), jnp.exp(y)).sum(),
    "rate_hinge": lambda x, y: rate_hinge(jax.nn.sigmoid(x).mean(1), 0.9),
    "rate_deviation": lambda x, y: rate_deviation(jax.nn.sigmoid(x).mean(1), 0.4),
    "l1": lambda x, y: l1({"a": x, "b": [y * x]}),
    "capacity": lambda x, y: capacity([-jnp.exp(x - 3)[None], -jnp.exp(y - 3)[None]], 2),
    "squared_error": lambda x, y: squared_error(x, y).sum(),
    "model_capacity": lambda x, y: model_capacity([-jnp.exp(x - 3)[None], -jnp.exp(y - 3)[None]], 2),
    "delayed_penalty": lambda x, y: (delayed_penalty(x[None], 1) * jnp.tile(y, (5, 1, 1)).swapaxes(0, 1)[None, :, None]).sum(),
    "capacity, valid": lambda x, y: capacity([-jnp.exp(x - 3)[None]], 2, MASK[:1] | (jnp.arange(5) > 2)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_central_differences(name):
    loss, (x, y) = LOSSES[name], DRAWN.values()
    slope, h = np.asarray(jax.grad(loss)(x, y)), 1e-2
    bump = lambda at, by: x.at[at].add(by)  # noqa: E731
    numeric = np.array([(loss(bump(at, h), y) - loss(bump(at, -h), y)) / (2 * h) for at in np.ndindex(3, 5)]).reshape(3, 5)
    assert np.abs(slope).max() > 1e-3
    np.testing.assert_allclose(slope, numeric, rtol=2e-2, atol=2e-4)


def test_the_two_divergences_are_their_formulas():
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in map(np.float64, DRAWN.values()))
    np.testing.assert_allclose(forward_kl(*DRAWN.values()), (p * np.log(p / q)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(reverse_kl(*DRAWN.values()), (q * np.log(q / p)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(cross_entropy(DRAWN["x"], TARGET), -np.log(p[np.arange(3), TARGET]), rtol=1e-5)
    np.testing.assert_allclose(forward_kl(DRAWN["x"], DRAWN["x"]), 0, atol=1e-7)


def test_the_worked_duo_attention():
    """full [1, 2], streaming [0, 4], alpha 0.75; alphas [0.75, 0.25] cost 0.05 · 0.5."""
    full, short = jnp.array([1.0, 2.0]), jnp.array([0.0, 4.0])
    mixed = 0.75 * full + 0.25 * short
    np.testing.assert_allclose(mixed, [0.75, 2.5])
    error = hidden_error(full, mixed)
    np.testing.assert_allclose(error, 0.15625)
    np.testing.assert_allclose(error + 0.05 * l1(jnp.array([0.75, 0.25])), 0.18125)


def test_the_worked_locret():
    predicted, wanted = jnp.array([0.4, 0.9, 0.1]), jnp.array([0.5, 0.8, 0.6])
    np.testing.assert_allclose(smooth_l1(predicted, wanted).mean(), 0.045, rtol=1e-6)
    np.testing.assert_allclose(neighbours(predicted).mean(), 0.445, rtol=1e-6)
    np.testing.assert_allclose(smooth_l1_with_neighbours(predicted, wanted), 0.0461125, rtol=1e-6)
    np.testing.assert_allclose(smooth_l1(jnp.array([3.0]), jnp.array([0.5])), [2.0])


def test_the_worked_lookahead():
    wanted, score = jnp.array([0.2, 0.2, 0.05, 0.05]), jnp.array([0.1, 0.3, 0.05, 0.05])
    np.testing.assert_allclose(score_kl(wanted, score), 0.115073, atol=1e-6)
    assert np.isfinite(score_kl(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])))


def test_the_worked_rates():
    np.testing.assert_allclose(rate_hinge(jnp.array([0.6]), of_ratio(4.0)), 0.15, rtol=1e-6)
    np.testing.assert_allclose(rate_hinge(jnp.array([np.mean([0.9, 0.7, 0.8])]), of_ratio(8.0)), 0.075, rtol=1e-6)
    np.testing.assert_allclose(rate_hinge(jnp.array([0.95, 0.7]), 0.9), 0.1, rtol=1e-5)
    np.testing.assert_allclose(rate_deviation(jnp.array([0.525]), 0.4), 0.125, rtol=1e-6)
    np.testing.assert_allclose([ratio_ramp(s / 250, 8.0) for s in (0, 125, 250, 300)], [1, 4.5, 8, 8])
    np.testing.assert_allclose([of_ratio(ratio_ramp(s / 250, 8.0)) for s in (0, 125, 250)], [0, 0.777778, 0.875], atol=1e-6)
    np.testing.assert_allclose([ratio_ramp(s / 510, 16.0) for s in (0, 34, 238, 510)], [1, 2, 8, 16])


def test_a_masked_mean_reads_nothing_that_is_masked():
    x = jnp.array([1.0, jnp.nan, 3.0])
    mask = jnp.array([True, False, True])
    np.testing.assert_allclose(masked_mean(x, mask), 2.0)
    np.testing.assert_array_equal(jax.grad(lambda x: masked_mean(x, mask))(x), [0.5, 0, 0.5])
    assert masked_mean(x, jnp.zeros(3, bool)) == 0


def test_the_worked_capacity_of_a_model():
    """Two layers of one head each, S = 3.65 after three tokens; M = 1."""
    log_beta = [jnp.log(jnp.array([[row]])) for row in ([0.9, 0.5, 0.99], [0.2, 0.3, 0.4])]
    np.testing.assert_allclose(model_capacity(log_beta, 1, jnp.array([[False, False, True]])), 0.825, rtol=1e-6)
    drawn = -RNG.exponential(size=(3, 2, 9))
    over = make_each_token_count.hinge(drawn.reshape(6, 9), 1)
    assert 0 < (over > 0).sum() < 9
    np.testing.assert_allclose(model_capacity(list(jnp.asarray(drawn, jnp.float32)[:, None]), 1), over[over > 0].mean(), rtol=1e-5)


def test_the_worked_delay():
    """Flags of tokens 0 to 5: 0 1 0 1 0 0, window 2: query 4 sees 1, 2, 3, 4 in full, query 2 sees 0, 1, 2."""
    bias = delayed_penalty(jnp.where(jnp.array([0, 1, 0, 1, 0, 0]) == 1, 2.0, -200.0)[None, None], 2)[0, 0, 0]
    np.testing.assert_array_equal(np.flatnonzero(bias[4, :5] == 0), [1, 2, 3, 4])
    np.testing.assert_array_equal(np.flatnonzero(bias[2, :3] == 0), [0, 1, 2])
    np.testing.assert_allclose([bias[4, 0], bias[5, 2]], [-2.126928] * 2, atol=5e-7)
    for logit, want in ((-5.0, -0.006715), (0.0, -0.693147), (2.0, -2.126928)):
        np.testing.assert_allclose(delayed_penalty(jnp.full((1, 1, 3), logit), 1)[0, 0, 0, 2, 0], want, atol=5e-7)


def test_the_worked_ramp():
    """CR is 1, 2, 8, 16 at steps 0, 34, 238, 510 of 544; a share of 0.8 where 0.875 is wanted costs 0.075."""
    at = lambda step: DMS().target(Moment(step=jnp.int32(step), key=jax.random.key(0), steps=544))  # noqa: E731
    np.testing.assert_allclose([at(s) for s in (0, 34, 238, 510, 543)], [0, 0.5, 0.875, 0.9375, 0.9375], atol=1e-6)
    np.testing.assert_allclose(rate_hinge(jnp.array([0.8]), at(238)), 0.075, rtol=1e-5)


def test_a_share_is_counted_hard_and_learned_softly():
    logits, valid = jnp.asarray(RNG.normal(size=(2, 3, 2, 5)), jnp.float32), jnp.arange(5) < jnp.array([[5], [3]])
    want = [(np.asarray(logits[row, :, :, : (5, 3)[row]]) > 0).mean() for row in range(2)]
    np.testing.assert_allclose(evicted_share(logits, valid), want, rtol=1e-6)
    slope = jax.grad(lambda z: evicted_share(z, valid).sum())(logits)
    p = jax.nn.sigmoid(logits)
    np.testing.assert_allclose(slope[0], p[0] * (1 - p[0]) / 30, rtol=1e-5)
    np.testing.assert_array_equal(slope[1, :, :, 3:], 0)


def test_ranks_are_spearmans():
    x, y = RNG.normal(size=(2, 3, 9)).astype(np.float32)
    mask = jnp.broadcast_to(jnp.arange(9) < 7, (3, 9))
    want = [scipy.stats.spearmanr(a[:7], b[:7]).statistic for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(rank_correlation(jnp.asarray(x), jnp.asarray(y), mask), want, atol=1e-6)
    np.testing.assert_allclose(rank_correlation(jnp.asarray(x), jnp.asarray(-x), mask), -1, atol=1e-6)
    np.testing.assert_array_equal(rank_correlation(jnp.asarray(x), jnp.asarray(y), jnp.zeros((3, 9), bool)), 0)


def test_padding_costs_no_capacity():
    log_beta = jnp.asarray(-RNG.exponential(size=(1, 2, 9)), jnp.float32)
    padded = jnp.concatenate([log_beta, jnp.zeros((1, 2, 4))], -1)
    np.testing.assert_allclose(capacity([padded], 1, jnp.arange(13)[None] < 9), capacity([log_beta], 1), rtol=1e-6)
    assert abs(capacity([padded], 1) - capacity([log_beta], 1)) > 0.01
