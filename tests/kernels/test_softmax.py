"""Every implementation of softmax against float64: rows of nothing, one score, lengths that are no multiple of a vector."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.softmax import api, softmax
from kvjax.kernels.softmax.shapes import SHAPES
from tests.reference.softmax import softmax as exact

IMPLEMENTATIONS = (*api.IMPLEMENTATIONS, "native")


def make(rows: int, n: int, spread: float = 3.0) -> np.ndarray:
    """Scores, a tenth of them of slots that are not seen, the first one seen."""
    rng = np.random.default_rng(n)
    scores = rng.normal(size=(rows, n)) * spread
    scores[:, 1:] = np.where(rng.random((rows, n - 1)) < 0.1, -np.inf, scores[:, 1:])
    return scores.astype(np.float32)


def check(impl: str, scores: np.ndarray) -> None:
    found = softmax(jnp.asarray(scores), impl=impl)
    want = np.stack([exact(row.astype(np.float64)) for row in scores])
    np.testing.assert_allclose(found, want, rtol=4e-6, atol=1e-37)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("n", [1, 5, 64, 300, 1100])
@pytest.mark.parametrize("spread", [0.01, 3.0, 30.0])
def test_is_the_softmax(impl, n, spread):
    check(impl, make(3, n, spread))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes(impl, name):
    check(impl, make(*SHAPES[name]))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_row_of_nothing_is_zero_and_leading_axes_are_kept(impl):
    scores = jnp.asarray(make(4, 40)).at[1].set(-jnp.inf).reshape(2, 2, 40)
    found = softmax(scores, impl=impl)
    assert found.shape == scores.shape and (found[0, 1] == 0).all()
    np.testing.assert_allclose(found.sum(-1), [[1, 0], [1, 1]], rtol=1e-5)


def test_derivatives_are_those_of_the_definition():
    scores = jnp.asarray(make(2, 50)).at[1, ::3].set(-jnp.inf)
    finite = jnp.where(jnp.isfinite(scores), scores, -5.0)
    loss = lambda impl: jax.grad(lambda s: (softmax(s, impl=impl) ** 2).sum())(finite)  # noqa: E731
    np.testing.assert_allclose(loss(None), loss("reference"), rtol=1e-4, atol=1e-7)


def test_an_unknown_implementation_is_named():
    with pytest.raises(ValueError, match="unknown impl 'flash' of softmax; there are xla, reference, native"):
        softmax(jnp.zeros((1, 8)), impl="flash")
