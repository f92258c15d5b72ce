"""FINCH against its reference, and the worked example."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.score.levelled import levelled
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.reference import finch
from tests.reference.rerotation import rerotate


def test_a19g():
    rows = jnp.array([[0.5, 0.3, 0.2, 0, 0], [0.4, 0.1, 0.3, 0, 0]])[None, None, None]
    u = levelled(rows, jnp.ones((1, 2), bool), jnp.array([5]))
    np.testing.assert_allclose(u[0, 0, :3], [1.55, 0.65, 0.9], rtol=1e-6)


def test_rows_before_the_text_do_not_count():
    """Of a window of two the first row is none: row 2 with 2 keys before it alone, over one row."""
    rows = jnp.array([[9.0, 9, 9], [0.2, 0.3, 0.5]])[None, None, None]
    u = levelled(rows, jnp.array([[False, True]]), jnp.array([3]))
    np.testing.assert_allclose(u[0, 0], [0.4, 0.6, 1.0], rtol=1e-6)


@pytest.mark.parametrize("window, chunk", [(8, None), (8, 32), (13, 24)])
def test_the_prompt(lm, prompt, pre, window, chunk):
    policy = kvjax.methods.finch(budget=0.4, window=window, chunk=chunk)
    cache, omega = kvjax.compress(pre, policy), np.asarray(lm.decoder.rope.frequencies)
    got = np.asarray(kvjax.score_prompt(pre, policy).rows[0].scores)[:, 0]
    for i, x in enumerate(layers_of(lm, prompt)):
        u = finch.finch(x.q[:, :, -window:], x.k)
        np.testing.assert_allclose(got[i, :, : 90 - window], u, rtol=1e-4, atol=1e-5)
        for h in range(2):
            kept = finch.kept(u[h], window=window, share=0.4, chunk=chunk)
            np.testing.assert_array_equal(cache.kept(i)[0][h], kept)
            start, m = int(cache.start[i, 0, h]), len(kept)
            turned = rerotate(x.k[h].astype(float), kept, omega)
            further = np.asarray(cache.k[start : start + m])
            np.testing.assert_allclose(further @ further.T, turned @ turned.T, atol=1e-4)


def test_a_prompt_shorter_than_its_question(lm):
    policy = kvjax.methods.finch(budget=3, window=8)
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(5)), policy)
    assert cache.kept(0)[0][0].tolist() == [2, 3, 4]


def test_chunks_want_a_share():
    with pytest.raises(ValueError, match="a share of every chunk"):
        kvjax.methods.finch(budget=64, chunk=32)
