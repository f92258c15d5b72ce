"""ChunkKV against its reference, and the worked example."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.select import Chunks
from kvjax.select.chunks import chunk_scores
from kvjax.view import Ranking
from tests.methods.inputs import layers_of
from tests.reference import chunkkv
from tests.reference.test_examples_chunkkv import U
from tests.reference.window_attention import window_attention


def kept(u, budget, **options):
    u = jnp.asarray(u, jnp.float32)[None, None]
    pos = jnp.broadcast_to(jnp.arange(u.shape[-1], dtype=jnp.int32), u.shape)
    stays = Chunks(**options)(Ranking(u, pos < 0, pos >= 0, pos), jnp.broadcast_to(jnp.asarray(budget), u.shape[:3]))
    return [np.flatnonzero(row).tolist() for row in np.asarray(stays[0, 0])]


def test_a6_chunk_scores():
    np.testing.assert_allclose(chunk_scores(jnp.asarray(U), jnp.ones(U.shape, bool), 4), [0.5, 0.3, 0.6], rtol=1e-6)


@pytest.mark.parametrize("share, want", [(0.75, [0, 1, 2, 3, 8, 9, 10]), (0.5, [8, 9, 10])])
def test_a6_kept(share, want):
    assert kept(U, int(11 * share), size=4, share=share) == [want, want]


@pytest.mark.parametrize("budget", [[8, 2], [2, 8], [5, 5]])
@pytest.mark.parametrize("whole, want", [(True, [8, 9, 10]), (False, [0, 1, 8, 9, 10])])
def test_heads_of_unequal_budgets_keep_their_mean(budget, whole, want):
    """5 of 11 slots: floor(3 · 5 / 11) = 1 chunk, or the best chunk and two of the next."""
    assert kept(U, budget, size=4, whole=whole) == [want, want]


def test_a_budget_beyond_what_is_held_counts_as_what_is_held():
    """(11 + 1) / 2 = 6 of 11 slots."""
    assert kept(U, [1000, 1], size=4, whole=False) == [[0, 1, 2, 8, 9, 10]] * 2


def test_a_layer_keeps_no_more_than_its_heads_were_allocated(lm, prompt):
    policy = kvjax.methods.adakv(budget=20, window=4).replace(select=Chunks(size=4, whole=False))
    pre = kvjax.prefill(lm, prompt, needs=policy)
    cache = kvjax.compress(pre, policy)
    budget = np.asarray(cache.budget)
    assert (budget.max(-1) > budget.min(-1)).any() and (cache.lengths.sum(-1) <= budget.sum(-1)).all()


def test_against_the_reference_on_random_scores():
    rng = np.random.default_rng(0)
    for n, size, share in [(43, 5, 0.3), (40, 1, 0.4), (4, 5, 0.5), (1, 5, 0.5), (60, 7, 0.99)]:
        u = rng.random((2, n)).astype(np.float32)
        for whole in (True, False):
            want = chunkkv.chunkkv(u, size=size, share=share, exact=not whole)
            assert kept(u, int(n * share), size=size, share=share, whole=whole) == [x.tolist() for x in want]


@pytest.mark.parametrize("whole", [True, False])
def test_the_prompt(lm, prompt, pre, whole):
    policy = kvjax.methods.chunkkv(budget=0.4, size=7, window=8, whole=whole)
    cache = kvjax.compress(pre, policy)
    for i, layer in enumerate(layers_of(lm, prompt)):
        u = window_attention(layer.q, layer.k, window=8)
        u = np.pad(u, ((0, 0), (0, 8)), constant_values=u.max() + 1)
        want = chunkkv.chunkkv(u, size=7, share=0.4, exact=not whole)
        for got, j in zip(cache.kept(i)[0], want, strict=True):
            np.testing.assert_array_equal(got, j)
