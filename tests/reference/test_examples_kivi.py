"""KIVI's schedule and bytes (Q1, Q2), and what must hold of its cache."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import affine
from .held import causal
from .kivi import Kivi, counts, kivi_nbytes

SCHEDULE = {10: (8, 2, 6, 4), 11: (8, 3, 7, 4), 12: (12, 0, 8, 4), 13: (12, 1, 9, 4), 16: (16, 0, 12, 4)}


def tokens(n, d=8, g=2, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(g, n, d)) * 2, rng.normal(size=(n, d)), rng.normal(size=(n, d))


def small(bits_k=2, bits_v=2):
    return Kivi(8, bits_k, bits_v, group_k=4, group_v=4, residual=4)


def fed(cache, q, k, v, prompt):
    """The outputs of a prompt and of the steps after it, side by side."""
    parts = [cache.extend(q[:, :prompt], k[:prompt], v[:prompt])[0]]
    parts += [cache.step(q[:, t], k[t], v[t])[0][:, None] for t in range(prompt, len(k))]
    return np.concatenate(parts, axis=1)


def test_q1_schedule():
    q, k, v = tokens(16)
    cache = small()
    cache.extend(q[:, :10], k[:10], v[:10])
    seen = {10: cache.counts()}
    for t in range(10, 16):
        cache.step(q[:, t], k[t], v[t])
        seen[t + 1] = cache.counts()
    assert {n: seen[n] for n in SCHEDULE} == SCHEDULE
    assert {n: counts(n, 4) for n in seen} == seen


def test_q1_memory_of_4160_tokens():
    d, scalars = 128, 4160 * 128
    assert kivi_nbytes(4160, d, 2) * 8 / (2 * scalars) == pytest.approx(3.3)
    coded_k, exact_k, coded_v, exact_v = counts(4160, 128)
    assert (coded_k, exact_k, coded_v, exact_v) == (4096, 64, 4032, 128)
    assert (coded_k * 3 + 16 * exact_k) / 4160 == pytest.approx(3.2)
    assert (coded_v * 3 + 16 * exact_v) / 4160 == pytest.approx(3.4)
    assert kivi_nbytes(4160, d, 2) * 8 == d * (coded_k * 3 + 16 * exact_k + coded_v * 3 + 16 * exact_v)


@pytest.mark.parametrize("group, bits", [(32, 3.0), (64, 2.5), (128, 2.25)])
def test_q1_bits_a_scalar_without_the_window(group, bits):
    n, residual = 128 * 40, 128
    exact = 128 * residual * 2
    coded = 8 * (kivi_nbytes(n, 128, 2, group_k=group, group_v=group, residual=residual) - exact)
    assert coded / (128 * (2 * n - residual)) == bits


def test_q2_keys_of_half_the_layers_in_two_bits():
    n, exact = 128 * 40, 128 * 128 * 2
    layers = [kivi_nbytes(n, 128, 2 if layer < 16 else 1, 1) - exact for layer in range(32)]
    keys, values = 2.5 * n, 2.0 * (n - 128)
    assert sum(layers) * 8 / (32 * 128) == keys + values


@pytest.mark.parametrize("n", [1, 3, 4, 5, 11, 12, 37])
@pytest.mark.parametrize("bits_k, bits_v", [(1, 1), (2, 4), (3, 3), (8, 2)])
def test_the_formula_counts_what_is_stored(n, bits_k, bits_v):
    q, k, v = tokens(n)
    cache = small(bits_k=bits_k, bits_v=bits_v)
    fed(cache, q, k, v, min(n, 9))
    packed = [affine.pack(b.codes, bits=bits_k, axis=0) for b in cache.coded_k]
    packed += [affine.pack(b.codes, bits=bits_v, axis=1) for b in cache.coded_v]
    steps = sum(2 * b.scale.astype(np.float16).nbytes for b in [*cache.coded_k, *cache.coded_v])
    exact = (cache.exact_k.size + cache.exact_v.size) * 2
    assert sum(w.nbytes for w in packed) + steps + exact == kivi_nbytes(n, 8, bits_k, bits_v, group_k=4, group_v=4, residual=4)


@pytest.mark.parametrize("n, prompt", [(1, 1), (3, 1), (4, 2)])
def test_nothing_is_coded_while_the_window_holds_all(n, prompt):
    q, k, v = tokens(n)
    cache = small()
    assert_allclose(fed(cache, q, k, v, prompt), causal(q, k, v), atol=1e-12)
    assert_array_equal(cache.values(), v)
    assert len(cache.coded_k) == (n == 4)


def test_a_prompt_attends_exactly_whatever_is_coded_after_it():
    q, k, v = tokens(30)
    cache = small(bits_k=1, bits_v=1)
    assert_allclose(cache.extend(q, k, v)[0], causal(q, k, v), atol=1e-12)
    assert np.abs(cache.keys()[:28] - k[:28]).max() > 0.1


@pytest.mark.parametrize("prompt", [1, 2, 4, 7, 8, 13, 23])
def test_the_state_does_not_depend_on_how_the_tokens_came(prompt):
    q, k, v = tokens(23)
    whole, parts = small(), small()
    whole.extend(q, k, v)
    fed(parts, q, k, v, prompt)
    assert whole.counts() == parts.counts()
    assert_array_equal(whole.keys(), parts.keys())
    assert_array_equal(whole.values(), parts.values())


def test_a_step_attends_before_it_codes():
    q, k, v = tokens(8)
    cache = small()
    cache.extend(q[:, :7], k[:7], v[:7])
    keys, values = np.vstack([cache.keys(), k[7:]]), np.vstack([cache.values(), v[7:]])
    assert_array_equal(keys[4:], k[4:])
    assert_array_equal(values[3:], v[3:])
    out, positions = cache.step(q[:, 7], k[7], v[7])
    assert_allclose(out, causal(q[:, 7:], keys, values)[:, 0], atol=1e-12)
    assert list(positions) == list(range(8))
    assert np.abs(cache.keys()[4:] - k[4:]).max() > 0.01
    assert np.abs(cache.values()[3] - v[3]).max() > 0.01


def test_several_tokens_at_once_code_as_many_blocks_as_they_fill():
    q, k, v = tokens(14)
    cache = small()
    cache.extend(q[:, :3], k[:3], v[:3])
    cache.extend(q[:, 3:], k[3:], v[3:])
    assert len(cache.coded_k) == (3 + 11) // 4
    assert cache.counts() == (12, 2, 10, 4)


def test_keys_are_coded_along_tokens_and_values_along_channels():
    k, v = np.zeros((8, 8)), np.zeros((8, 8))
    k[:, 5] = 1000.0
    v[2] = 1000.0
    cache = small()
    cache.extend(np.zeros((1, 8, 8)), k, v)
    assert_array_equal(cache.keys(), k)
    assert_array_equal(cache.values(), v)


@pytest.mark.parametrize("n", [5, 17, 30])
def test_eight_bits_come_close_and_fewer_come_less_close(n):
    q, k, v = tokens(n)
    exact = causal(q, k, v)
    errors = [np.abs(fed(small(bits_k=b, bits_v=b), q, k, v, 4) - exact).max() for b in (8, 4, 2)]
    assert errors[0] < 0.03 and errors[0] < errors[1] < errors[2]


def test_the_two_windows_empty_and_slide():
    q, k, v = tokens(20)
    cache, keys, values = small(), [], []
    for t in range(20):
        cache.step(q[:, t], k[t], v[t])
        keys.append(len(cache.exact_k))
        values.append(len(cache.exact_v))
    assert keys == [1, 2, 3, 0] * 5
    assert values == [1, 2, 3, *[4] * 17]
