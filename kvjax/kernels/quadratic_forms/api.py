"""Quadratic forms of keys: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float, Float32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations by name; each module defines `forms`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("quadratic forms", IMPLEMENTATIONS, {"native": "cpu"}, __package__)


def quadratic_forms(
    k: Float[Array, "b h n d"], a: Float32[Array, "b h g d d"], b: Float32[Array, "b h g d"], *, impl: str | None = None
) -> Float32[Array, "b h g n"]:
    """e_n = k_n' (A k_n + b) for the g matrices and vectors of a KV head.

    Args:
        k: keys.   a, b: matrices and vectors, g a KV head.
        impl: a key of IMPLEMENTATIONS or "native" (CPU); None chooses by platform.

    Raises:
        ValueError: shapes that do not fit, an unknown implementation.
    """
    _check(k, a, b)
    return _OPERATION.call(impl, "forms", k, a, b)


def _check(k, a, b) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    if k.ndim != 4 or a.shape != (*k.shape[:2], *a.shape[2:3], k.shape[3], k.shape[3]) or b.shape != a.shape[:-1]:
        raise ValueError(f"k must be [b, h, n, d], a [b, h, g, d, d] and b [b, h, g, d]; got {k.shape}, {a.shape} and {b.shape}")
