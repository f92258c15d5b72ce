"""Least squares in float32: normal equations by Cholesky, refined until the residual is that of the equations themselves."""

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float32

#: What is added to the diagonal, as a share of the trace: enough for rounding, undone by the refinement where columns differ.
_JITTER = 1e-6
_REFINEMENTS = 4


def gram(x: Float32[Array, "m t"]) -> Float32[Array, "t t"]:
    """XᵀX."""
    return jnp.matmul(x.T, x, precision="highest")


def largest_eigenvalue(g: Float32[Array, "t t"], steps: int = 64) -> Float32[Array, ""]:
    """The largest one of a matrix of no negative numbers, ‖X‖₂² of its XᵀX, by power iteration."""
    v = jnp.ones(g.shape[0], jnp.float32)
    for _ in range(steps):
        v = jnp.matmul(g, v, precision="highest")
        v = v / jnp.maximum(jnp.linalg.norm(v), 1e-30)
    return v @ jnp.matmul(g, v, precision="highest")


def least_squares(
    x: Float32[Array, "m t"], y: Float32[Array, "m d"], real: Bool[Array, " t"], ridge: Float32[Array, ""] | float = 0.0
) -> Float32[Array, "t d"]:
    """argmin ‖X C - Y‖² + ridge ‖C‖² over the columns that are real, 0 in the others; near the least norm where it is open."""
    x = jnp.where(real, x, 0.0)
    g = gram(x)
    raised = ridge + _JITTER * jnp.trace(g) + 1e-30
    factor = cho_factor(g + jnp.diag(jnp.where(real, raised, 1.0)))
    c = jnp.zeros((x.shape[1], y.shape[1]), jnp.float32)
    for _ in range(1 + _REFINEMENTS):
        left = y - jnp.matmul(x, c, precision="highest")
        c = c + cho_solve(factor, jnp.matmul(x.T, left, precision="highest") - ridge * c)
    return jnp.where(real[:, None], c, 0.0)
