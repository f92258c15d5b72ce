"""Every implementation of mass selection against the sorted rule in float64."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.select_top_p import api, select_top_p
from kvjax.kernels.select_top_p.shapes import SHAPES
from tests.reference import hcattention as hc
from tests.reference.softmax import softmax

IMPLEMENTATIONS = (*api.IMPLEMENTATIONS, "native")
#: float32 sums of thousands of probabilities: which slot is the last may differ where two sums are as near as this to tau.
UNSURE = 2e-6
TIES = jnp.log(jnp.asarray([[0.25] * 4, [0.1, 0.4, 0.1, 0.4], [0.0, 1.0, 0.0, 0.0]], jnp.float32))[None, :, None, None]
NOTHING = jnp.full((1, 1, 2, 1, 40), -jnp.inf).at[0, 0, 1, 0, 7].set(-3.0)


def make(h: int, g: int, n: int, spread: float, seed: int = 0) -> jax.Array:
    """Scores with some slots unseen."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(1, h, g, 1, n)) * spread
    return jnp.asarray(np.where(rng.random(scores.shape) < 0.1, -np.inf, scores), jnp.float32)


def check(scores: jax.Array, tau: float, found: tuple) -> None:
    """See that `found`, weights and lse, are the rule's."""
    weights, lse = found
    rows = scores.shape[-1]
    for s, found, total in zip(scores.reshape(-1, rows), weights.reshape(-1, rows), lse.reshape(-1), strict=True):
        s, found = np.asarray(s, np.float64), np.asarray(found)
        a = softmax(s)
        np.testing.assert_allclose(total, s.max() + np.log(np.exp(s - s.max()).sum()), rtol=1e-6, atol=2e-6)
        order, taken = np.argsort(-np.asarray(s, np.float32), kind="stable"), np.flatnonzero(found)
        np.testing.assert_allclose(found[taken], a[taken], rtol=1e-5)
        fewest = {len(hc.chosen(a, tau + slack)) for slack in (-UNSURE, UNSURE)}
        assert min(fewest) <= len(taken) <= max(fewest)
        # the largest were taken; float32 may tie what float64 does not
        assert a[taken].min() >= a[order[len(taken) - 1]] * (1 - 1e-6)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("tau", [0.05, 0.9, 0.999])
@pytest.mark.parametrize("n", [1, 5, 300, 1024])
def test_is_the_sorted_rule(impl, n, tau):
    for spread in (0.1, 1.0, 5.0):
        scores = make(2, 2, n, spread, seed=n).at[..., 0].set(0.5)
        check(scores, tau, select_top_p(scores, tau, impl=impl))


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes(impl, name):
    shape = SHAPES[name]
    scores = make(shape.h, shape.g, shape.n, shape.spread)
    check(scores, 0.9, select_top_p(scores, 0.9, impl=impl))


def check_ties(weights: Callable) -> None:
    """See that `weights(tau)` of TIES are those of lower index, and all of the mass at tau = 1."""
    taken = lambda tau: (weights(tau) > 0)[0, :, 0, 0].tolist()  # noqa: E731
    assert taken(0.5)[0] == [True, True, False, False]
    assert taken(0.85)[1] == [True, True, False, True]
    assert taken(1.0) == [[True] * 4, [True] * 4, [False, True, False, False]]


def check_nothing(weights: jax.Array, lse: jax.Array) -> None:
    """See that the query of NOTHING that sees no slot has neither weights nor mass."""
    assert lse[0, 0, :, 0].tolist() == [-np.inf, -3.0]
    assert (weights[0, 0, 0] == 0).all() and weights[0, 0, 1, 0].tolist() == [float(i == 7) for i in range(40)]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_ties_by_lower_index_and_all_of_the_mass(impl):
    check_ties(lambda tau: select_top_p(TIES, tau, impl=impl)[0])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_a_query_that_sees_nothing(impl):
    check_nothing(*select_top_p(NOTHING, 0.9, impl=impl))


def test_tau_is_data_and_derivatives_are_those_of_xla():
    scores = make(2, 2, 50, 2.0).at[..., ::3].set(0.1)
    run = jax.jit(lambda s, tau: select_top_p(s, tau)[0])
    counts = [int((run(scores, tau) > 0).sum()) for tau in (0.1, 0.5, 0.9)]
    assert run._cache_size() == 1 and counts == sorted(counts) and counts[0] < counts[2]
    finite = jnp.where(jnp.isfinite(scores), scores, -5.0)
    loss = lambda impl: jax.grad(lambda s: (select_top_p(s, 0.8, impl=impl)[0] ** 2).sum())(finite)  # noqa: E731
    np.testing.assert_allclose(loss(None), loss("xla"), rtol=1e-5, atol=1e-7)


def test_an_unknown_implementation_is_named():
    with pytest.raises(ValueError, match="unknown impl 'cudnn' of mass selection; there are xla, reference, native, triton"):
        select_top_p(make(1, 1, 8, 1.0), 0.9, impl="cudnn")
