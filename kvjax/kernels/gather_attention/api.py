"""Attention over listed slots: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float, Float32, Int32

from kvjax.kernels.dispatch import Operation
from kvjax.kernels.ragged_attention.api import check_bias

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `attention`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("gather attention", IMPLEMENTATIONS, {"triton": "cuda", "native": "cpu"}, __package__)


def gather_attention(
    q: Float[Array, "b h g 1 d"],
    k: Float[Array, "s d"],
    v: Float[Array, "s d"],
    slots: Int32[Array, "b h m"],
    count: Int32[Array, "b h"],
    *,
    bias: Float32[Array, " s"] | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "b h g 1 d"], Float32[Array, "b h g 1"]]:
    """Attention of one query over the first count[b, h] slots of the list of (b, h), which its g query heads share.

    out = sum_{i < count} p_i v[slots_i],  p_i = exp(s_i - lse),  s_i = q . k[slots_i] / sqrt(d) + bias[slots_i].

    Args:
        q: queries, rotated, g per KV head; for a list of its own for every query head, pass h·g heads of g = 1.
        k: the pool's keys, rotated; slots not listed may hold anything, NaN included.
        v: the pool's values.
        slots: slots of the pool in any order; a slot that is listed twice counts twice. Those from count on may be any number.
        count: how many of the list are read, 0 to m; data, a new value does not retrace.
        bias: of each slot, added to its scores (None: 0).
        impl: a key of IMPLEMENTATIONS, "native" (CPU) or "triton" (NVIDIA); None chooses by platform.

    Returns:
        The output in the dtype of q and the log of the softmax denominator in float32; 0 and -inf for an empty list.
        Rounded as in `ragged_attention`.

    Raises:
        ValueError: shapes that do not fit, an implementation that is unknown or cannot run here.

    Source: attention over what retrieval selects, renormalised over it, as in Quest, arXiv 2406.10774; the softmax of
    `ragged_attention`.
    """
    _check(q, k, v, slots, count)
    check_bias(bias, k)
    return _OPERATION.call(impl, "attention", q, k, v, slots, count, bias)


def _check(q, k, v, slots, count) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    if q.ndim != 5 or q.shape[3] != 1 or k.ndim != 2 or k.shape != v.shape or k.shape[1] != q.shape[-1]:
        raise ValueError(f"q must be [b, h, g, 1, d], k and v [s, d]; got q {q.shape}, k {k.shape}, v {v.shape}")
    if slots.ndim != 3 or slots.shape[:2] != q.shape[:2] or slots.shape[2] < 1 or count.shape != q.shape[:2]:
        raise ValueError(f"slots must be {q.shape[:2]} (b, h) by m >= 1 and count (b, h); got {slots.shape} and {count.shape}")
