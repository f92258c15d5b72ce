"""TriAttention: the worked example A9, the series as a rotated dot product, selections, edges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from .rotary import rotate
from .top_k import top_k
from .triattention import calibrate, pairs, per_head, per_layer_per_head, room, score, standard, union

MU, M, OMEGA = np.array([2 * np.exp(0.5j)]), np.array([3.0]), np.array([1.0])
KEYS = np.array([[np.exp(0.2j)], [2], [0.5 * np.exp(-1j)]])
PLACES, OFFSETS = np.array([0, 3, 5]), np.array([1, 2, 4])


def example(**options):
    return score(MU, M, KEYS, PLACES, 8, OMEGA, offsets=OFFSETS, **options)


def test_a9_terms():
    assert_allclose(2 * np.abs(KEYS[:, 0]), [2, 4, 1])
    assert_allclose(np.angle(MU * np.conj(KEYS[:, 0])), [0.3, 0.5, 1.5])
    assert_allclose(example(series=False), [1, 2, 0.5])


@pytest.mark.parametrize(
    "options, expected, kept",
    [
        ({}, [0.554454, 2.434734, 0.861082], [1, 2]),
        ({"reduce": np.max}, [2.929465, 5.906351, 1.476588], [0, 1]),
        ({"corrected": False}, [2.554454, 6.434734, 1.861082], None),
    ],
)
def test_a9_scores(options, expected, kept):
    assert_allclose(example(**options), expected, atol=5e-7)
    if kept:
        assert list(top_k(example(**options), 2)) == kept


def test_the_series_is_the_mean_query_rotated_against_the_cached_key():
    rng, omega = np.random.default_rng(0), 10000.0 ** (-np.arange(4) / 4)
    q, raw, places = rng.normal(size=(1, 1, 30, 8)) + 1, rng.normal(size=(6, 8)), np.array([0, 2, 3, 7, 8, 11])
    mu, m = calibrate(q)
    cached = rotate(raw, places, omega)
    for offset in (1, 64):
        ours = score(mu[0, 0], np.abs(mu[0, 0]), pairs(raw), places, 12, omega, offsets=np.array([offset]))
        mean = rotate(q[0, 0].mean(axis=0, keepdims=True), np.array([12 + offset]), omega)[0]
        assert_allclose(ours, cached @ mean)
    assert (m >= np.abs(mu)).all()


def test_the_scale_enters_squared():
    assert_allclose(example(scale=1.2), 1.44 * example())


def test_queries_that_agree_need_no_correction():
    mu, m = calibrate(np.tile([1.0, 2.0, 3.0, 4.0], (1, 1, 5, 1)))
    assert_allclose(mu[0, 0], [1 + 3j, 2 + 4j])
    assert_allclose(m, np.abs(mu))


def test_union_is_cut_by_the_maximum():
    scores = np.array([[9.0, 0, 5, 4, 0, 0], [9, 0, 0, 1, 7, 6]])
    assert union(scores, budget=3, prompt=1).tolist() == [0, 4, 5]
    assert union(scores, budget=2).tolist() == [0, 4]


def test_head_modes():
    scores = np.array([[[[0.0, 1, 5, 2]], [[0, 3, 1, 2]]], [[[0, 9, 1, 2]], [[0, 1, 1, 2]]]])
    assert per_layer_per_head(scores[0], budget=2, prompt=1).tolist() == [[0, 2], [0, 1]]
    assert per_layer_per_head(scores[1], budget=2, prompt=1).tolist() == [[0, 1], [0, 3]]
    assert per_head(scores, budget=2, prompt=1).tolist() == [[0, 1], [0, 1]]


def test_z_scores_and_no_room():
    assert_allclose(standard(np.array([[1.0, 3.0], [10, 30]])), [[-1, 1], [-1, 1]])
    with pytest.raises(ValueError, match="budget of 8 leaves no room beside a prompt of 8"):
        room(8, 8)
