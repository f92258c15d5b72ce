"""The fewest slots that reach a share of the attention mass: what is computed, and which implementation computes it."""

import jax.numpy as jnp
from jaxtyping import Array, Float32

from kvjax.kernels.dispatch import Operation
from kvjax.types import Number

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `select`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("mass selection", IMPLEMENTATIONS, {"native": "cpu", "triton": "cuda"}, __package__)


def select_top_p(
    scores: Float32[Array, "b h g t n"], tau: Number, *, impl: str | None = None
) -> tuple[Float32[Array, "b h g t n"], Float32[Array, "b h g t"]]:
    """Probabilities of the fewest slots that reach tau, 0 elsewhere.

    p_j = exp(s_j - lse); the k* largest are taken, k* = min {k : Σ of the k largest >= tau - 1e-6}.

    Args:
        scores: -inf where a query sees no slot.
        tau: share of the mass; data, so a new value does not retrace. Everything is taken where the mass never reaches it.
        impl: a key of IMPLEMENTATIONS or "native" (CPU) or "triton" (GPU); None chooses by platform.

    Returns:
        The probabilities that were taken, equal ones by lower index, and log Σ exp(s) of all: 0 and -inf where nothing is seen.

    Raises:
        ValueError: an implementation that is unknown or cannot run here.

    Source: HCAttention, arXiv 2507.19823, equation 4; the tolerance covers the rounding of a float32 sum.
    """
    return _OPERATION.call(impl, "select", scores, jnp.asarray(tau, jnp.float32))
