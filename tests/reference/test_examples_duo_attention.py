"""DuoAttention's worked examples (E28, T6, A17's streaming head), the release's patterns, and what must hold of its heads."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import duo_attention as duo
from .held import causal
from .softmax import softmax

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden_methods" / "duoattention.npz")


def tokens(n, h=2, g=2, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(h, g, n, d)) * 2, rng.normal(size=(h, n, d)), rng.normal(size=(h, n, d))


def fed(pattern, q, k, v, pieces, *, sinks, recent):
    """Outputs and positions held after each piece, in the one layer of `pattern`."""
    decoding, outs, held, at = duo.Decoding(pattern, k.shape[-1], sinks=sinks, recent=recent), [], [], 0
    for c in pieces:
        out, positions = decoding.extend(0, q[:, :, at : at + c], k[:, at : at + c], v[:, at : at + c])
        outs.append(out)
        held.append([list(p) for p in positions])
        at += c
    return np.concatenate(outs, axis=2), held


def test_e28_pattern():
    alpha = np.array([[0.9, 0.1], [0.4, 0.3], [0.05, 0.7]])
    assert_allclose(np.quantile(alpha, 0.5), 0.35)
    assert_array_equal(duo.full_heads(alpha, 0.5), [[1, 0], [1, 0], [0, 1]])


def test_t6_mix_and_loss():
    full, streaming = np.array([[1.0, 2.0]]), np.array([[0.0, 4.0]])
    mix = duo.mixed(full, streaming, 0.75)
    assert_allclose(mix, [[0.75, 2.5]])
    alpha = np.array([[0.75, 0.25]])
    assert_allclose(duo.loss(full, mix, alpha, weight=0), 0.15625)
    assert_allclose(duo.loss(full, mix, alpha), 0.18125)


@pytest.mark.parametrize(
    "step, rate", [(0, 0.002), (39, 0.002), (40, 0.00205), (199, 0.01), (399, 0.02), (1800, 0.01), (1999, 0.002)]
)
def test_t6_learning_rate(step, rate):
    assert_allclose(duo.learning_rate(step), rate)


def test_t6_mask_row():
    mask = duo.streaming_mask(6, sinks=1, recent=2)
    assert_array_equal(mask[5], [1, 0, 0, 0, 1, 1])
    assert_array_equal(mask[0], [1, 0, 0, 0, 0, 0])
    assert not np.triu(mask, 1).any()


def test_t6_memory():
    pattern, n, d = np.array([[True, False]]), 32768, 128
    assert duo.duo_nbytes(pattern, n, d, sinks=128, recent=256) * 8 / (2 * 2 * d * n) == pytest.approx(8.09375)


@pytest.mark.parametrize("pieces, total, after", [((4, 4), 40, [3, 3]), ((8,), 44, [3])])
def test_a17_keys_a_streaming_head_sees(pieces, total, after):
    """8 prompt tokens in pieces and 2 steps, one sink, two recent: visible keys summed over queries, of 55."""
    q, k, v = tokens(10, h=1, g=1, d=10)
    q, v = np.zeros_like(q), np.eye(10)[None]
    out, held = fed(np.zeros((1, 1), bool), q, k, v, [*pieces, 1, 1], sinks=1, recent=2)
    visible = (out[0, 0] > 0).sum(axis=1)
    assert visible.sum() == total
    assert [len(h[0]) for h in held] == [*after, 3, 3]


@pytest.mark.parametrize("percent", [0, 25, 50, 75, 100])
def test_golden_patterns(percent):
    noise = np.random.default_rng(percent).uniform(0, 1e-6, GOLDEN["alpha"].shape)
    for n in (None, noise):
        full = duo.full_heads(GOLDEN["alpha"], percent / 100, n)
        assert_array_equal(full, GOLDEN[f"full_heads_sp{percent}"])
        assert 1 - full.mean() == GOLDEN[f"actual_sparsity_sp{percent}"]


def test_noise_breaks_ties_that_are_all_full_without_it():
    alpha = np.full((2, 2), 0.5)
    assert duo.full_heads(alpha, 0.5).all()
    assert duo.full_heads(alpha, 0.5, np.array([[1, 4], [3, 2]]) * 1e-7).tolist() == [[False, True], [True, False]]


def test_alphas_are_cut_to_one_before_they_are_compared():
    assert duo.full_heads(np.array([[1.5, 1.0, 0.2, -3.0]]), 0.6).tolist() == [[True, True, False, False]]
    assert duo.full_heads(np.array([[-3.0, 0.0, 0.2, 0.4]]), 0.2).tolist() == [[True, True, True, True]]


def test_full_heads_hold_all_and_streaming_heads_two_ranges():
    q, k, v = tokens(12)
    out, held = fed(np.array([[True, False]]), q, k, v, [6] + [1] * 6, sinks=2, recent=3)
    assert held[0] == [list(range(6)), [0, 1, 3, 4, 5]]
    assert held[-1] == [list(range(12)), [0, 1, 9, 10, 11]]
    assert_allclose(out[0], causal(q[0], k[0], v[0]), atol=1e-12)


def test_a_step_sees_one_key_more_than_the_training_mask():
    n, sinks, recent = 12, 2, 3
    q, k, v = tokens(n)
    out, _ = fed(np.array([[False, False]]), q, k, v, [1] * n, sinks=sinks, recent=recent)
    for offset, equal in ((1, True), (0, False)):
        mask = duo.streaming_mask(n, sinks=sinks, recent=recent + offset)
        want = [softmax(np.where(mask, q[h] @ k[h].T / 2, -np.inf)) @ v[h] for h in range(2)]
        assert np.allclose(out, want, atol=1e-12) == equal


@pytest.mark.parametrize("n", [1, 4, 5])
def test_a_text_that_fits_is_held_whole(n):
    q, k, v = tokens(n)
    out, held = fed(np.array([[True, False]]), q, k, v, [n], sinks=2, recent=3)
    assert held[-1] == [list(range(n))] * 2
    assert_allclose(out, [causal(q[h], k[h], v[h]) for h in range(2)], atol=1e-12)


def test_the_first_piece_is_seen_whole_and_later_ones_see_a_cut_past():
    q, k, v = tokens(12)
    pattern = np.array([[True, False]])
    (whole, _), (pieces, held) = (fed(pattern, q, k, v, p, sinks=1, recent=2) for p in ([12], [7, 5]))
    assert held[0][1] == [0, 5, 6]
    assert_allclose(whole[:, :, :7], pieces[:, :, :7], atol=1e-12)
    assert_allclose(whole[0], pieces[0], atol=1e-12)
    assert np.abs(whole[1, :, 7:] - pieces[1, :, 7:]).max() > 0.01
    seen = [0, 5, 6, *range(7, 12)]
    assert_allclose(pieces[1, :, 7:], causal(q[1, :, 7:], k[1, seen], v[1, seen]), atol=1e-12)


def test_layers_with_one_class_only():
    alpha = np.array([[0.9, 0.8], [0.1, 0.2]])
    pattern = duo.full_heads(alpha, 0.5)
    assert pattern.tolist() == [[True, True], [False, False]]
    decoding = duo.Decoding(pattern, 4, sinks=1, recent=1)
    q, k, v = tokens(6)
    assert [len(p) for p in decoding.extend(0, q, k, v)[1]] == [6, 6]
    assert [len(p) for p in decoding.extend(1, q, k, v)[1]] == [2, 2]


@pytest.mark.parametrize("n", [1, 4, 5, 6, 30])
def test_the_formula_counts_what_is_held(n):
    q, k, v = tokens(n, d=4)
    pattern = np.array([[True, False]])
    _, held = fed(pattern, q, k, v, [1] * n, sinks=2, recent=3)
    assert 2 * 2 * 4 * sum(len(p) for p in held[-1]) == duo.duo_nbytes(pattern, n, 4, sinks=2, recent=3)
