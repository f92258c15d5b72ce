"""Decisions: hard values, soft derivatives, and draws as likely as they are said to be."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.train import draw_log_probability, gumbel_sigmoid, gumbel_top_k, noisy_logit, straight_through


def test_straight_through_is_hard_forward_and_soft_backward():
    logit = jnp.array([-2.0, -0.01, 0.01, 2.0])
    hard = lambda z: straight_through(jax.nn.sigmoid(z))  # noqa: E731
    np.testing.assert_array_equal(hard(logit), [0, 0, 1, 1])
    slope = jax.grad(lambda z: hard(z).sum())(logit)
    p = jax.nn.sigmoid(logit)
    np.testing.assert_allclose(slope, p * (1 - p), rtol=1e-6)
    np.testing.assert_array_equal(straight_through(jnp.array([0.9, 0.4, 0.6, 0.2])), [1, 0, 1, 0])


def test_a_noisy_decision_is_yes_as_often_as_its_logit_says():
    """σ((l + G1 - G2)/τ) > 1/2 where G1 - G2 > -l, which has probability σ(l)."""
    for logit in (-2.0, 0.0, 1.0):
        drawn = gumbel_sigmoid(jax.random.key(0), jnp.full(20_000, logit), 0.1)
        p = float(jax.nn.sigmoid(logit))
        np.testing.assert_allclose((drawn > 0.5).mean(), p, atol=4 * np.sqrt(p * (1 - p) / 20_000))
        assert ((drawn < 0.05) | (drawn > 0.95)).mean() > 0.8


def test_the_derivative_of_a_noisy_decision_is_a_central_difference():
    key, logit, h = jax.random.key(1), jnp.array([0.3, -1.0, 2.0]), 1e-3
    f = lambda z: gumbel_sigmoid(key, z, 0.7).sum()  # noqa: E731
    numeric = [(f(logit.at[i].add(h)) - f(logit.at[i].add(-h))) / (2 * h) for i in range(3)]
    np.testing.assert_allclose(jax.grad(f)(logit), numeric, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(jax.grad(lambda z: noisy_logit(key, z, 0.5).sum())(logit), [2, 2, 2])


def test_the_worked_draw():
    s = jnp.array([1.0, 0.0, -1.0])
    p = lambda *order: np.exp(draw_log_probability(s, jnp.array(order)))  # noqa: E731
    np.testing.assert_allclose(draw_log_probability(s, jnp.array([0, 2])), -1.720868, atol=1e-6)
    np.testing.assert_allclose([p(0, 2), p(2, 0), p(0, 2) + p(2, 0)], [0.178911, 0.065818, 0.244728], atol=1e-6)
    np.testing.assert_allclose(sum(p(*order) for order in itertools.permutations(range(3), 2)), 1, rtol=1e-6)


def test_draws_are_as_likely_as_they_say():
    s = jnp.array([1.0, 0.0, -1.0])
    drawn = np.asarray(gumbel_top_k(jax.random.key(0), jnp.broadcast_to(s, (20_000, 3)), 2))
    for order in itertools.permutations(range(3), 2):
        p = float(np.exp(draw_log_probability(s, jnp.array(order))))
        np.testing.assert_allclose((drawn == order).all(1).mean(), p, atol=4 * np.sqrt(p * (1 - p) / 20_000))


def test_the_gradient_of_a_draws_log_probability_is_a_central_difference():
    s, order, h = jnp.array([[0.4, -0.2, 1.1, 0.3]]), jnp.array([[2, 0]]), 1e-2
    f = lambda s: draw_log_probability(s, order).sum()  # noqa: E731
    numeric = [(f(s.at[0, i].add(h)) - f(s.at[0, i].add(-h))) / (2 * h) for i in range(4)]
    np.testing.assert_allclose(jax.grad(f)(s)[0], numeric, atol=2e-3)
