"""KVzip's worked examples (E11, and A13's last figure), and what must hold of its scores and cuts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import kvzip
from .heads import group_max
from .softmax import softmax

U = np.array([[[0.9, 0.2, 0.5, 0.1]], [[0.6, 0.6, 0.3, 0.05]]])


def positions(kept):
    return [[list(np.flatnonzero(head)) for head in layer] for layer in kept]


def random_pass(n=11, system=3, size=4, layers=2, heads=2, group=2, d=4, extra=3, seed=0):
    """Queries, own keys, cached keys and values of a model whose pass over a chunk is `extra` tokens longer than the chunk."""
    rng = np.random.default_rng(seed)
    lengths = [part.stop - part.start + extra for part in kvzip.chunks(n, size)]
    q = [rng.normal(size=(layers, heads, group, r, d)) * 2 for r in lengths]
    own = [rng.normal(size=(layers, heads, r, d)) for r in lengths]
    k, v = rng.normal(size=(2, layers, heads, system + n, d))
    return q, own, k, v


@pytest.mark.parametrize("ratio, kept", [(0.5, [[[0]], [[0, 1]]]), (0.3, [[[0]], [[]]])])
def test_e11_one_threshold_for_the_model(ratio, kept):
    assert positions(kvzip.kept_pairs(U, ratio)) == kept


def test_e11_budgets_are_what_lies_above_it():
    counts = kvzip.head_budgets(kvzip.kept_pairs(U, 0.5))
    assert_array_equal(counts, [[1], [2]])
    assert_array_equal(counts.sum(axis=1), [1, 2])


def test_a13_log_of_mass_and_output():
    got = kvzip.output_log_scores(np.full((1, 1, 1, 1), 0.2), np.full((1, 1, 1), 3.0), np.full(1, 4.0))
    assert_allclose(got, [[-1.897120]], atol=5e-7)


def test_output_scores_take_the_maximum_after_the_norms():
    rows = np.array([[[[0.5, 0.1], [0.2, 0.4]], [[0.3, 0.3], [0.1, 0.2]]]])
    value, hidden = np.array([[[1.0, 2.0], [4.0, 1.0]]]), np.array([2.0, 1.0])
    want = [max(0.5 / 2, 0.2, 4 * 0.3 / 2, 4 * 0.1), max(2 * 0.1 / 2, 2 * 0.4, 0.3 / 2, 0.2)]
    assert_allclose(np.exp(kvzip.output_log_scores(rows, value, hidden))[0], want)


def test_layers_alone_and_heads_alone():
    assert positions(kvzip.kept_by_layer(U, 0.75)) == [[[0, 2]], [[0, 1]]]
    assert positions(kvzip.kept_by_layer(U, 0.5)) == [[[0]], [[]]]
    assert positions(kvzip.kept_uniform(U, 0.5)) == [[[0, 2]], [[0, 1]]]
    assert positions(kvzip.kept_uniform(U, 0.25)) == [[[0]], [[0]]]
    assert positions(kvzip.kept_uniform(U, 0.2)) == [[[]], [[]]]


def test_heads_are_pooled_over_tokens_and_contexts():
    pooled = kvzip.head_scores([np.array([[[0.9, 0.2], [0.3, 0.1]], [[0.2, 0.2], [0.4, 0.7]]]), np.full((2, 2, 5), 0.35)])
    assert_allclose(pooled, [[0.9, 0.35], [0.35, 0.7]])
    assert_array_equal(kvzip.full_heads(pooled, 0.75), [[True, False], [False, True]])


@pytest.mark.parametrize("n, size, want", [(1, 4, [1]), (4, 4, [4]), (11, 4, [4, 4, 3]), (3, 2000, [3])])
def test_chunks_cover_the_context(n, size, want):
    parts = kvzip.chunks(n, size)
    assert [p.stop - p.start for p in parts] == want
    assert np.concatenate([np.arange(n)[p] for p in parts]).tolist() == list(range(n))


def test_the_softmax_sees_system_chunk_and_pass_only():
    """Entry by entry: one loop over queries, keys by name."""
    q, own, k, _ = random_pass()
    got = kvzip.scores(q, own, k, system=3, size=4)
    for layer, h in np.ndindex(2, 2):
        for c, part in enumerate(kvzip.chunks(11, 4)):
            best = np.zeros(part.stop - part.start)
            for g in range(2):
                for i, query in enumerate(q[c][layer, h, g]):
                    context = k[layer, h, 3:][part]
                    keys = [*k[layer, h, :3], *context, *own[c][layer, h, : i + 1]]
                    p = softmax(np.array([query @ key / 2 for key in keys]))
                    best = np.maximum(best, p[3 : 3 + len(context)])
            assert_allclose(got[layer, h, part], best, atol=1e-12)


def test_a_chunk_knows_nothing_of_the_others():
    q, own, k, _ = random_pass()
    changed = k.copy()
    changed[:, :, 3 + 8 :] += 5.0
    before, after = (kvzip.scores(q, own, x, system=3, size=4) for x in (k, changed))
    assert_array_equal(before[..., :8], after[..., :8])
    assert np.abs(before[..., 8:] - after[..., 8:]).max() > 0.01


def test_one_token_and_no_system_prompt():
    q, own, k, _ = random_pass(n=1, system=0, size=4)
    got = kvzip.scores(q, own, k, system=0, size=4)
    assert got.shape == (2, 2, 1) and (0 < got).all() and (got < 1).all()
    assert kvzip.kept_pairs(got, 1.0).sum() == 3


def test_the_maximum_does_not_depend_on_the_order_of_query_heads():
    q, own, k, _ = random_pass()
    swapped = [x[:, :, ::-1] for x in q]
    assert_array_equal(kvzip.scores(q, own, k, system=3, size=4), kvzip.scores(swapped, own, k, system=3, size=4))
    rows = np.random.default_rng(1).random((2, 3, 5, 7))
    assert_array_equal(kvzip.highest(rows), group_max(rows.max(axis=2)))


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.3, 0.5, 0.77, 1.0])
def test_counts_without_ties(ratio):
    u = np.random.default_rng(3).permutation(2 * 3 * 10).reshape(2, 3, 10) / 60
    assert kvzip.kept_pairs(u, ratio).sum() == max(int(60 * ratio + 1e-9) - 1, 0)
    assert (kvzip.kept_by_layer(u, ratio).sum(axis=(1, 2)) == max(int(30 * ratio + 1e-9) - 1, 0)).all()
    assert (kvzip.kept_uniform(u, ratio).sum(axis=-1) == int(10 * ratio + 1e-9)).all()


def test_ties_at_the_threshold_all_go():
    assert kvzip.kept_pairs(np.full((2, 2, 3), 0.5), 0.5).sum() == 0
    assert positions(kvzip.kept_uniform(np.full((1, 1, 4), 0.5), 0.5)) == [[[0, 1]]]


def test_a_head_without_context_still_sees_system_and_new_tokens():
    _, _, k, v = random_pass()
    head = kvzip.compressed(k[0, 0], v[0, 0], np.zeros(11, bool), system=3)
    rng = np.random.default_rng(5)
    q, new_k, new_v = rng.normal(size=(2, 4)), rng.normal(size=4), rng.normal(size=4)
    out, held = kvzip.step(head, q, new_k, new_v)
    assert list(held) == [0, 1, 2, 14]
    keys, values = np.vstack([k[0, 0, :3], new_k]), np.vstack([v[0, 0, :3], new_v])
    assert_allclose(out, softmax(q @ keys.T / 2) @ values, atol=1e-12)


def test_decoding_with_a_cut_cache_is_a_mask_on_the_full_one():
    _, _, k, v = random_pass()
    kept = np.random.default_rng(2).random(11) < 0.5
    head = kvzip.compressed(k[0, 0], v[0, 0], kept, system=3)
    seen, keys, values = np.concatenate([np.ones(3, bool), kept]), k[0, 0], v[0, 0]
    for seed in range(4):
        q, new = np.random.default_rng(seed).normal(size=(2, 4)), np.random.default_rng(seed + 9).normal(size=(2, 4))
        keys, values, seen = np.vstack([keys, new[0]]), np.vstack([values, new[1]]), np.append(seen, True)
        out, held = kvzip.step(head, q, *new)
        assert_array_equal(held, np.flatnonzero(seen))
        assert_allclose(out, softmax(np.where(seen, q @ keys.T / 2, -np.inf)) @ values, atol=1e-12)
