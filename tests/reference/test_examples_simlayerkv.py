"""SimLayerKV: the worked example A19h, the threshold, edges."""

import numpy as np
from numpy.testing import assert_allclose

from .simlayerkv import kept, lazy, lazy_mass


def row_on(positions, n):
    row = np.zeros((1, 1, n))
    row[..., positions] = 1 / len(positions)
    return row


def test_a19h():
    stay = kept(row_on([0, 4000], 4096), threshold=0.9)
    assert len(stay) == 1027
    assert_allclose(1 - len(stay) / 4096, 0.749268, atol=5e-7)
    assert stay[:5].tolist() == [0, 1, 2, 3, 4096 - 1023] and stay[-1] == 4095


def test_mass_is_a_mean_over_heads_without_the_query_itself():
    row = np.concatenate([row_on([0, 11], 12), row_on([5, 6], 12)], axis=1)
    assert lazy_mass(row, sinks=2, recent=3) == 0.25
    assert lazy_mass(row_on([8, 9, 10], 12), sinks=2, recent=3) == 1.0
    assert lazy_mass(row_on([7, 11], 12), sinks=2, recent=3) == 0.0


def test_the_threshold_is_strict_and_one_turns_it_off():
    row = row_on([0, 10], 12)
    assert not lazy(row, threshold=1.0, sinks=2, recent=3)
    assert lazy(row, threshold=0.99, sinks=2, recent=3)
    assert kept(row, threshold=1.0, sinks=2, recent=3).tolist() == list(range(12))
    assert kept(row, threshold=0.9, sinks=2, recent=3).tolist() == [0, 1, 10, 11]


def test_a_prompt_of_sinks_recent_and_one_stays():
    assert kept(row_on([0], 6), threshold=0.5, sinks=2, recent=3).tolist() == list(range(6))
    assert kept(row_on([0], 7), threshold=0.5, sinks=2, recent=3).tolist() == [0, 1, 5, 6]
    assert kept(row_on([0], 1), threshold=0.5).tolist() == [0]
