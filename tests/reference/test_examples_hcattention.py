"""HCAttention's worked example (2.12), the mask of block-wise prefill, and what must hold of codes and sets."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from . import hcattention as hc
from .softmax import softmax

BOOK = np.array([[[1.0, 0], [0, 1]], [[1, 1], [-1, 1]]])
KEYS = np.array([[0.9, 0.1, 0.8, 1.1], [0.2, 0.7, -1.2, 0.9], [0.6, 0.5, 0.1, 1.0]])
QUERY, VALUES = np.array([2.0, 1, 1, -1]), np.array([[1.0, 0], [0, 1], [1, 1]])


def test_example_codes_and_scores():
    p = hc.codes(KEYS, BOOK)
    assert p.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert_allclose(((KEYS - hc.decoded(p, BOOK)) ** 2).sum(1), [0.07, 0.18, 1.22], atol=1e-12)
    table = hc.query_table(QUERY, BOOK)
    assert table.tolist() == [[2, 1], [0, -2]]
    assert hc.look_up(table, p).tolist() == [2, -1, 2]
    assert_allclose(hc.attention(QUERY, p, BOOK), [0.449816, 0.100368, 0.449816], atol=5e-7)
    assert_allclose(KEYS @ QUERY, [1.6, -1.0, 0.8])
    assert_allclose(softmax(KEYS @ QUERY / 2), [0.514707, 0.140274, 0.345019], atol=5e-7)


@pytest.mark.parametrize(
    "tau, slots, y, renormalised",
    [
        (0.4, [0], [0.449816, 0], [1, 0]),
        (0.8, [0, 2], [0.899632, 0.449816], [1, 0.5]),
        (0.9, [0, 2, 1], [0.899632, 0.550184], [0.899632, 0.550184]),
        (1.0, [0, 2, 1], [0.899632, 0.550184], [0.899632, 0.550184]),
    ],
)
def test_example_selection(tau, slots, y, renormalised):
    a = hc.attention(QUERY, hc.codes(KEYS, BOOK), BOOK)
    assert hc.chosen(a, tau).tolist() == slots
    assert_allclose(hc.output(a, VALUES, hc.chosen(a, tau)), y, atol=1e-6)
    assert_allclose(hc.output(a, VALUES, hc.chosen(a, tau), renormalise=True), renormalised, atol=1e-6)


@pytest.mark.parametrize("anchor, row, seen", [(2, 4, [0, 1, 4]), (2, 5, [0, 1, 4, 5]), (2, 3, [0, 1, 2, 3]), (1, 5, [0, 4, 5])])
def test_block_mask(anchor, row, seen):
    assert np.flatnonzero(hc.allowed(6, 2, anchor)[row]).tolist() == seen


def test_a_block_as_long_as_the_prompt_is_causal_attention():
    for mask in (hc.allowed(7, 7, 1), hc.allowed(7, 9, 1), hc.allowed(7, 2, 1, tail=7)):
        np.testing.assert_array_equal(mask, np.tri(7, dtype=bool))


def random_case(seed, shared):
    rng = np.random.default_rng(seed)
    return rng.normal(size=8), rng.normal(size=(30, 8)), rng.normal(size=(1 if shared else 4, 16, 2))


@pytest.mark.parametrize("shared", [False, True])
def test_look_up_is_the_product_with_the_decoded_key(shared):
    q, k, book = random_case(0, shared)
    p = hc.codes(k, book)
    assert_allclose(hc.look_up(hc.query_table(q, book), p), hc.decoded(p, book) @ q, atol=1e-12)


def test_a_codebook_of_the_keys_loses_nothing():
    q, k, _ = random_case(1, False)
    book = k.reshape(30, 4, 2).swapaxes(0, 1)
    p = hc.codes(k, book)
    assert_allclose(hc.decoded(p, book), k)
    assert_allclose(hc.attention(q, p, book), softmax(k @ q / np.sqrt(8)))


def test_the_error_never_grows_with_nested_centroids():
    _, k, book = random_case(2, False)
    errors = [((k - hc.decoded(hc.codes(k, book[:, :c]), book[:, :c])) ** 2).sum() for c in (1, 2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True) and errors[-1] < errors[0]


@pytest.mark.parametrize("seed", range(5))
def test_sets_grow_with_tau_and_reach_it(seed):
    a = softmax(np.random.default_rng(seed).normal(size=50) * 3)
    sizes = []
    for tau in (0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0):
        slots = hc.chosen(a, tau)
        sizes.append(len(slots))
        assert 1 - a[slots].sum() < 1 - tau + 1.001e-6
        assert len(slots) == 1 or a[slots[:-1]].sum() < tau
    assert sizes == sorted(sizes)


def test_ties_are_cut_at_the_lower_index():
    assert hc.chosen(np.array([0.25, 0.25, 0.25, 0.25]), 0.5).tolist() == [0, 1]
    assert hc.chosen(np.array([0.1, 0.4, 0.1, 0.4]), 0.85).tolist() == [1, 3, 0]
