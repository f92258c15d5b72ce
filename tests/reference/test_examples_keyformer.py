"""Keyformer's worked examples (E6, A14b) and its reduction to H2O."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import keyformer
from .decode_head import as_logits, decode_head
from .highest import highest
from .softmax import softmax
from .streaming import by_accumulated, evict_loop, rows_of

X = np.array([2.0, 1.0, 0.0, -1.0])


@pytest.mark.parametrize(
    "tau, noise, p, kept",
    [
        (1.0, [0, 0, 0, 0], [0.6439, 0.2369, 0.0871, 0.0321], [0, 1]),
        (1.5, [0, 0, 0, 0], [0.5229, 0.2685, 0.1378, 0.0708], [0, 1]),
        (1.0, [0, 0, 1.5, 0], [0.4940, 0.1817, 0.2996, 0.0246], [0, 2]),
    ],
)
def test_e6(tau, noise, p, kept):
    found = keyformer.tempered(X, np.array(noise, float), tau)
    assert_allclose(found, p, atol=5e-5)
    assert list(highest(found, 2)) == kept


def no_noise(t, g=2):
    return np.zeros((g, t, t))


def gumbel(seed, t, g=2):
    return np.random.default_rng(seed).gumbel(size=(g, t, t))


def random_head(seed, t):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(2, t, 8)), rng.normal(size=(t, 8)), rng.normal(size=(t, 8))


def test_a14b_the_reference_freezes_its_keys():
    q, k, v = random_head(0, 16)
    steps = decode_head(keyformer.Release(6, 2, gumbel(1, 16)), q, k, v, 10, show=as_logits)
    keys = steps[0].held[:-1]
    assert len(keys) == 4 and set(keys.tolist()) <= set(range(8)) and steps[0].held[-1] == 9
    for i, step in enumerate(steps[1:]):
        assert list(step.held) == [*keys, 10 + i]


def test_the_formulas_lose_nothing():
    q, k, v = random_head(0, 16)
    steps = decode_head(keyformer.Decoding(6, 2, gumbel(1, 16)), q, k, v, 10, show=as_logits)
    assert [len(s.held) for s in steps] == [6] * 7
    for i, step in enumerate(steps):
        assert list(step.held[-2:]) == [8 + i, 9 + i]


@pytest.mark.parametrize("seed", range(4))
def test_without_noise_at_tau_1_it_is_h2o(seed):
    q, k, v = random_head(seed, 30)
    steps = decode_head(keyformer.Decoding(9, 3, no_noise(30), tau=lambda step: 1.0), q, k, v, 12, show=as_logits)
    h2o = evict_loop(rows_of(q, k), 12, 18, score=by_accumulated, budget=9, recent=3)
    for step, held in zip(steps, h2o, strict=True):
        assert_array_equal(step.held, held)


def test_noise_decides_and_the_output_does_not_see_it():
    q, k, v = random_head(2, 20)
    noisy = decode_head(keyformer.Decoding(20, 3, gumbel(0, 20)), q, k, v, 12, show=as_logits)
    plain = decode_head(keyformer.Decoding(20, 3, no_noise(20)), q, k, v, 12, show=as_logits)
    for one, other in zip(noisy[1:], plain[1:], strict=True):
        assert_allclose(one.out, other.out)
    kept = [decode_head(keyformer.Decoding(6, 2, gumbel(s, 20)), q, k, v, 12, show=as_logits)[0].held for s in range(5)]
    assert len({tuple(held) for held in kept}) > 1


def test_no_noise_brings_back_a_masked_token():
    z = np.array([1.0, -np.inf, 0.5])
    assert keyformer.tempered(z, np.array([0.0, 1e3, 0.0]), 1.0)[1] == 0


def test_schedules():
    assert keyformer.tau_code(0) == 1 and keyformer.tau_code(100) == 2
    assert keyformer.tau_linear(50, 100) == 1.5
    assert keyformer.sizes(100) == (60, 18)
    assert keyformer.sizes(10) == (6, 1)


def test_the_step_counts_from_the_first_generated_token():
    q, k, v = random_head(3, 8)
    asked = []

    def tau(step):
        asked.append(step)
        return 1.0

    decode_head(keyformer.Decoding(20, 3, no_noise(8), tau=tau), q, k, v, 5, show=as_logits)
    assert asked == [0, 1, 2, 3]


def test_within_the_budget_is_full_attention():
    q, k, v = random_head(4, 12)
    last = decode_head(keyformer.Decoding(12, 3, gumbel(0, 12)), q, k, v, 1, show=as_logits)[-1]
    assert_array_equal(last.held, np.arange(12))
    assert_allclose(last.out, softmax(q[:, -1] @ k.T / np.sqrt(8)) @ v)


def test_ties_go_to_the_lower_position():
    assert_array_equal(keyformer.kept_of(np.ones(6), 3, 1), [0, 1, 5])
