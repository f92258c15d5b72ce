"""Rows times two weight matrices, the one product gating the other: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `multiply`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("gated linear", IMPLEMENTATIONS, {"native": "cpu"}, __package__)


def gated_linear(
    x: Float[Array, "r i"], gate: Float[Array, "o i"], up: Float[Array, "o i"], *, impl: str | None = None
) -> Float[Array, "r o"]:
    """y = silu(x gateᵀ) · (x upᵀ), silu(z) = z / (1 + exp(-z)), in x's dtype.

    Args:
        x: rows.   gate, up: (out, in), as Hugging Face stores them, of one dtype.
        impl: a key of IMPLEMENTATIONS or "native" (CPU, more than 64 rows: both products of a block of rows are finished while they
            are in the caches); None chooses by platform.

    Raises:
        ValueError: shapes that do not fit, an implementation that is unknown or cannot run here.

    Source: Shazeer, 2020, GLU Variants Improve Transformer (SwiGLU).
    """
    if x.ndim != 2 or gate.shape != up.shape or gate.ndim != 2 or x.shape[1] != gate.shape[1]:
        raise ValueError(f"x must be [r, i], gate and up [o, i]; got {x.shape}, {gate.shape} and {up.shape}")
    return _OPERATION.call(impl, "multiply", x, gate, up)
