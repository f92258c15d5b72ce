"""Rows times a weight matrix: what is computed, and which implementation computes it."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `multiply`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("linear", IMPLEMENTATIONS, {"native": "cpu"}, __package__)


def linear(
    x: Float[Array, "r i"], weight: Float[Array, "o i"], *, dtype: DTypeLike | None = None, impl: str | None = None
) -> Float[Array, "r o"]:
    """y = x weightᵀ, with sums in float32 or in `dtype`, whichever the platform's product offers.

    Args:
        x: rows.   weight: (out, in), as Hugging Face stores it; its dtype and x's may differ.
        dtype: of the result; None: x's.
        impl: a key of IMPLEMENTATIONS or "native" (CPU; of 16-bit numbers up to 64 rows, weights read as they are); None chooses by
            platform.

    Raises:
        ValueError: shapes that do not fit, an implementation that is unknown or cannot run here.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x must be [r, i] and weight [o, i]; got {x.shape} and {weight.shape}")
    return _OPERATION.call(impl, "multiply", x, weight, dtype=jnp.dtype(dtype or x.dtype))
