"""SqueezeAttention: its worked example, groups against the transcription, and the toy model's own stream."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate.three_groups import highest_of_three, two_levels
from kvjax.evidence.residual_cosine import cosines
from tests.methods.simulation import prompt_arrays
from tests.reference import squeeze_attention as squeeze

E19 = [0.55, 0.60, 0.75, 0.80, 0.78, 0.95, 0.96, 0.94]


levels, of_three = jax.jit(two_levels), jax.jit(highest_of_three)


def budgets(low, mean, least, n):
    low = jnp.asarray(low)[None]
    as_row = lambda x: jnp.asarray([x], jnp.int32)  # noqa: E731
    return levels(low, as_row(mean), as_row(least), jnp.full(low.shape, n, jnp.int32))[0].tolist()


def highest(c):
    with jax.enable_x64(True):
        return np.asarray(of_three(jnp.asarray(c, jnp.float64)[None])[0])


def test_e19():
    low = highest(E19)
    assert low.tolist() == [False] * 5 + [True] * 3
    assert budgets(low, 100, 35, 1000) == [139] * 5 + [35] * 3


@pytest.mark.parametrize("layers", [3, 4, 7, 30])
@pytest.mark.parametrize("seed", range(3))
def test_groups_and_budgets(layers, seed):
    c = np.random.default_rng(seed).uniform(0.5, 1, layers)
    group = squeeze.clusters(c)
    low = highest(c)
    np.testing.assert_array_equal(low, group == 2)
    assert budgets(low, 100, 35, 10_000) == squeeze.exact_budgets(group, layers, 100, 35, 10_000).tolist()


@pytest.mark.parametrize("c", [[0.5, 0.5, 0.9, 0.9], [0.7], [0.7, 0.8], [0.6] * 5])
def test_fewer_than_three_values_share_evenly(c):
    assert squeeze.clusters(np.array(c)) is None
    assert not highest(c).any() and budgets(highest(c), 10, 3, 50) == [10] * len(c)


def test_what_a_layer_cannot_hold_goes_to_the_others():
    assert budgets([False, False, True], 40, 10, 50) == [50, 50, 20]


def test_a_token_without_a_stream_has_no_direction():
    x = jnp.asarray([[[0.0, 0.0], [3.0, 4.0]]])
    np.testing.assert_allclose(cosines(x, jnp.asarray([[[1.0, 0.0], [-6.0, -8.0]]])), [[0, -1]], atol=1e-6)


@pytest.mark.parametrize("chunk", [None, 64])
def test_cosines_of_the_model(lm, prompt, chunk):
    policy = kvjax.methods.squeeze_attention(budget=40)
    pre = kvjax.prefill(lm, prompt, needs=policy, chunk=chunk)
    layers = prompt_arrays(lm, prompt)
    before = np.stack([x.residual for x in layers])
    want = squeeze.cosines(before, np.stack([x.residual + x.added for x in layers]))
    got = kvjax.score_prompt(pre, policy).rows[0].measured[:, 0]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    lengths = kvjax.compress(pre, policy).lengths[:, 0, 0]
    np.testing.assert_array_equal(lengths, squeeze.exact_budgets(squeeze.clusters(want), 3, 40, int(0.35 * 40 + 1e-6), 90))


def test_any_method_chooses_the_tokens(lm, prompt):
    policy = kvjax.methods.squeeze_attention(budget=30, tokens=kvjax.methods.h2o())
    assert policy.score == kvjax.methods.h2o().score and policy.when == kvjax.Every(1)
    assert kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy).lengths.sum() == 30 * 6
