"""Random: what is drawn depends on the seed, the layer, the head and the position, and on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.noise import gumbel_at, uniform_at
from tests.conftest import ids_of
from tests.reference import random_attention


@pytest.fixture(scope="module")
def numbers():
    """u of three layers, two heads and 90 positions."""
    at = np.ogrid[:3, :2, :90]
    return np.asarray(uniform_at(7, *at))


def test_the_numbers_are_uniform_and_independent():
    u = np.asarray(uniform_at(0, *np.ogrid[:4, :5, :1000])).reshape(20, 1000)
    assert ((u >= 0) & (u < 1)).all() and len(np.unique(u)) > 19_900
    np.testing.assert_allclose(np.quantile(u, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.01)
    assert np.abs(np.corrcoef(u) - np.eye(20)).max() < 0.15


@pytest.mark.parametrize("draw, theirs", [(uniform_at, jax.random.uniform), (gumbel_at, jax.random.gumbel)])
@pytest.mark.parametrize("seed", [0, -3, 2**31 - 1])
def test_numbers_are_those_of_jax_with_a_key_folded_at_each_index(draw, theirs, seed):
    first, second = np.array([0, 5, 2**31 - 1]), np.array([-1, 0, 77, 4096])
    mine = jax.jit(draw)(seed, first[:, None], second)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), a), b)
            assert mine[i, j] == jax.jit(theirs)(key)


def test_numbers_do_not_depend_on_the_generator_a_user_has_set():
    want = uniform_at(2, jnp.arange(5))
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(uniform_at(2, jnp.arange(5)), want)


def test_gumbel_noise_has_its_mean_and_variance():
    x = np.asarray(gumbel_at(3, jnp.arange(20_000)))
    np.testing.assert_allclose([x.mean(), x.var()], [0.5772, np.pi**2 / 6], rtol=0.05)


def test_an_index_is_drawn_alike_wherever_it_stands():
    want = uniform_at(5, 1, jnp.arange(3)[:, None], jnp.arange(50))
    some = jnp.asarray([[40, 3, 7]])
    np.testing.assert_array_equal(uniform_at(5, jnp.int32(1), jnp.arange(3)[:, None], some), want[:, some[0]])
    assert (uniform_at(6, 1, jnp.arange(3)[:, None], jnp.arange(50)) != want).all()


def test_the_prompt_keeps_the_largest_numbers(pre, numbers):
    cache = kvjax.compress(pre, kvjax.methods.random(budget=30, seed=7))
    for layer in range(3):
        for h, want in enumerate(random_attention.press(numbers[layer], 30)):
            np.testing.assert_array_equal(cache.kept(layer)[0][h], want)


def test_what_is_held_while_decoding_is_the_best_of_all_seen(lm, pre):
    """A sample of a stream: the largest numbers of the whole text so far, whatever was evicted before."""
    policy = kvjax.methods.random(budget=20, seed=3, decoding=True)
    cache = kvjax.extend(lm, kvjax.compress(pre, policy), ids_of(40, 9), policy, block=1).cache
    u = np.asarray(uniform_at(3, *np.ogrid[:3, :2, :130]))
    for layer in range(3):
        for h, want in enumerate(random_attention.press(u[layer], 20)):
            np.testing.assert_array_equal(cache.kept(layer)[0][h], want)


def test_sinks_and_recent_tokens_are_kept_where_asked(pre):
    cache = kvjax.compress(pre, kvjax.methods.random(budget=12, sinks=3, recent=4))
    for kept in cache.kept(1)[0]:
        assert kept[:3].tolist() == [0, 1, 2] and kept[-4:].tolist() == [86, 87, 88, 89]


def test_another_seed_is_another_draw_without_another_program(pre):
    one, other = (kvjax.compress(pre, kvjax.methods.random(budget=30, seed=s)).kept(0)[0][0] for s in (0, 1))
    assert set(one) != set(other)
