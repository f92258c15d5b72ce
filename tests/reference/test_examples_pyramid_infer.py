"""PyramidInfer's worked example (E14) and what must hold of every layer."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import pyramid_infer as pyramid
from .attention import attention_rows


def test_e14_ratios_and_sizes():
    assert_allclose([pyramid.ratio(layer, 4) for layer in range(4)], [1, 0.98536, 0.95, 0.91464], atol=5e-6)
    context, sizes = 1000, []
    for layer in range(4):
        context = pyramid.context_size(context, pyramid.ratio(layer, 4), 64)
        sizes.append(context)
    assert sizes == [1000, 985, 935, 855]


def seeded_rows(seed, n, recent):
    """rows(l, survivors) of random queries and keys: two KV heads of two query heads."""

    def rows(layer, survivors):
        rng = np.random.default_rng([seed, layer])
        q, k = 2 * rng.normal(size=(2, 2, recent, 8)), rng.normal(size=(2, n, 8))
        return attention_rows(q, k[:, survivors]).reshape(4, recent, -1)

    return rows


def test_e14_as_a_prefill():
    held = pyramid.prefill(seeded_rows(0, 1251, 251), 1251, 4)
    assert [len(layer) - 251 for layer in held] == [1000, 985, 935, 855]


@pytest.mark.parametrize("seed", range(3))
def test_survivors_are_nested_and_the_protected_survive(seed):
    n, recent = 200, 41
    held = pyramid.prefill(seeded_rows(seed, n, recent), n, 6, p=0.5)
    assert len(held[0]) == n and len(held[-1]) < 150
    for above, below in zip(held[1:], held[:-1], strict=True):
        assert set(above.tolist()) <= set(below.tolist())
    for layer in held:
        assert_array_equal(layer[:4], np.arange(4))
        assert_array_equal(layer[-recent:], np.arange(n - recent, n))


def test_layers_between_keep_what_they_get():
    held = pyramid.prefill(seeded_rows(0, 200, 41), 200, 6, p=0.5, interval=2)
    assert [len(a) == len(b) for a, b in zip(held[:-1], held[1:], strict=True)] == [True, False, True, False, True]


@pytest.mark.parametrize("n", [1, 2, 10, 80])
def test_short_prompts_stay(n):
    recent = 1 + n // 5
    for layer in pyramid.prefill(seeded_rows(0, n, recent), n, 5, p=0.1):
        assert_array_equal(layer, np.arange(n))


def test_a_context_never_falls_to_the_least():
    assert pyramid.context_size(64, 0.5, 64) == 64
    assert pyramid.context_size(100, 0.5, 64) == 100
    assert pyramid.context_size(100, 0.65, 64) == 65
    assert pyramid.context_size(100, 0.64, 64) == 100
    assert pyramid.context_size(100, 1.0, 64) == 100


def test_later_rows_weigh_more():
    rows = np.array([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2]])
    assert_allclose(pyramid.weighted_mean(rows), [(0.5 + 0.36) / 2, (0.3 + 0.6) / 2, 0.22])
    a = np.concatenate([rows, np.zeros((2, 2))], axis=1)[None]
    assert list(pyramid.layer_kept(a, 0.34, 0, sinks=0)) == [1, 3, 4]
    assert list(pyramid.layer_kept(a, 0.34, 0, sinks=1)) == [0, 3, 4]


def test_heads_may_be_swapped():
    rows = seeded_rows(1, 200, 41)
    one = pyramid.prefill(rows, 200, 4, p=0.5)
    other = pyramid.prefill(lambda layer, held: rows(layer, held)[::-1], 200, 4, p=0.5)
    for a, b in zip(one, other, strict=True):
        assert_array_equal(a, b)


def test_decoding_cuts_generated_tokens_alone():
    rng = np.random.default_rng(0)
    share = pyramid.ratio(2, 4, 0.1)
    assert_allclose(share, 0.55)
    rule, sizes = pyramid.Decoding(np.arange(0, 20, 2), share, recent=3, every=4), []
    for t in range(20, 34):
        rule.step(rng.dirichlet(np.ones(len(rule.held) + 1), size=3), t)
        sizes.append(len(rule.held))
        assert_array_equal(rule.held[:10], np.arange(0, 20, 2))
        assert_array_equal(rule.held[-3:][-min(3, t - 19) :], np.arange(max(20, t - 2), t + 1))
    assert int(0.9 * 4 * share) == 1
    assert sizes == [11, 12, 13, 14, 15, 16, 14, 15, 16, 17, 15, 16, 17, 18]


def test_decoding_keeps_the_most_attended_of_its_group():
    rule = pyramid.Decoding(np.array([0]), 1.0, recent=1, every=2, factor=0.5)
    for t, row in enumerate(([0.5, 0.5], [0.2, 0.1, 0.7], [0.1, 0.3, 0.6, 0.0]), start=1):
        rule.step(np.array([row]), t)
    assert_array_equal(rule.held, [0, 2, 3])


def test_one_of_a_group_always_stays():
    rule = pyramid.Decoding(np.array([0]), 0.01, recent=1, every=2)
    for t in range(1, 4):
        rule.step(np.full((1, t + 1), 1 / (t + 1)), t)
    assert_array_equal(rule.held, [0, 1, 3])
