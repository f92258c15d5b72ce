"""Weighted sums of values: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float, Float32, Int32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `weighted_sum`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_REVERSED = {"weighted_sum": "reference"}
_OPERATION = Operation("weighted values", IMPLEMENTATIONS, {"native": "cpu"}, __package__, reversed_as=_REVERSED)


def weighted_values(
    v: Float[Array, "s d"], start: Int32[Array, "b h"], weights: Float32[Array, "b h g t n"], *, impl: str | None = None
) -> Float32[Array, "b h g t d"]:
    """out = Σ_j weights_j · v[start + j] over every region, in float32.

    Args:
        v: the pool's values; slots of weight 0 behind a region's last used one may hold anything, NaN included.
        start: first slot of each region; at least 256 slots of slack end the pool.
        weights: of each query row, not negative, 0 from the region's end on.
        impl: a key of IMPLEMENTATIONS or "native" (CPU: reads only slots of some weight); None chooses by platform.

    Raises:
        ValueError: shapes that do not fit, an implementation that is unknown or cannot run here.
    """
    if v.ndim != 2 or weights.ndim != 5 or start.shape != weights.shape[:2]:
        raise ValueError(f"v must be [s, d], weights [b, h, g, t, n], start (b, h); got {v.shape}, {weights.shape}, {start.shape}")
    return _OPERATION.call(impl, "weighted_sum", v, start, weights)
