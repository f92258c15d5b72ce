"""Attention from packed codes: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float, Float32, Int32

from kvjax.kernels.dispatch import Operation
from kvjax.types import SlotPositions

from . import reference, xla
from .packed import Packed

#: Implementations that run anywhere, by name; each module defines `attention`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("packed attention", IMPLEMENTATIONS, {"triton": "cuda", "native": "cpu"}, __package__)


def packed_attention(
    q: Float[Array, "b h g t d"],
    k: Packed,
    v: Packed,
    pos: SlotPositions,
    start: Int32[Array, "b h"],
    length: Int32[Array, "b h"],
    q_pos: Int32[Array, "b t"],
    *,
    bias: Float32[Array, " s"] | None = None,
    window: int | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "b h g t d"], Float32[Array, "b h g t"]]:
    """`ragged_attention` over slots that are codes: k^_j = s_k · code + m_k and v^_j = s_v · code + m_v, or exact rows.

    out_i = Σ_j p_ij v^_j,  p_ij = exp(q_i · k^_j / sqrt(d) + bias_j - lse_i).

    Args:
        q: queries, rotated, g per KV head.   k, v: codes, exact rows and where they end; values by slot.
        pos, start, length, q_pos, bias, window: as in `ragged_attention`; regions begin at whole pages.
        impl: a key of IMPLEMENTATIONS, "native" (CPU) or "triton" (NVIDIA GPU); None chooses by platform. The last two never write
            a key or value down. "native" folds steps and minima into queries, weights and sums,
            q · (s code + m) = (q s) · code + q · m; "triton" restores a tile in registers, and rounds it to q's dtype.

    Returns:
        The output in the dtype of q and the log of the softmax denominator; 0 and -inf where nothing is seen. Sums are in float32.

    Raises:
        ValueError: shapes that do not fit, values by page, an implementation that is unknown or cannot run here.
    """
    _check(q, k, v, pos, start, length, q_pos, bias, window)
    return _OPERATION.call(impl, "attention", q, k, v, pos, start, length, q_pos, bias, window=window)


def _check(q, k: Packed, v: Packed, pos, start, length, q_pos, bias, window) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    b, h, _, t, d = q.shape
    if v.page != 1:
        raise ValueError(f"values are coded slot by slot; got pages of {v.page}")
    for name, side in (("k", k), ("v", v)):
        _check_side(name, side, pos.shape[0], b=b, h=h, d=d)
    if start.shape != (b, h) or length.shape != (b, h) or q_pos.shape != (b, t):
        raise ValueError(f"start and length must be {(b, h)}, q_pos {(b, t)}; got {start.shape}, {length.shape}, {q_pos.shape}")
    if bias is not None and bias.shape != pos.shape[:1]:
        raise ValueError(f"bias must be {pos.shape[:1]}, one a slot; got {bias.shape}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 position (or None), got {window}")


def _check_side(name: str, side: Packed, slots: int, *, b: int, h: int, d: int) -> None:
    """Refuse codes that are not of these slots, and exact rows that are not of these regions."""
    rows, each = side.words.shape[0], 32 // side.bits
    wide = -(-side.page // each) if side.page > 1 else -(-d // each)
    if rows * side.page != slots or side.words.shape[1] != wide or side.scale.shape != side.low.shape:
        raise ValueError(
            f"{name} must be codes of {side.bits} bits for {slots} slots in pages of {side.page}, {wide} words a row, with as many "
            f"steps as minima; got words {side.words.shape}, steps {side.scale.shape}, minima {side.low.shape}"
        )
    if side.tail.shape[:2] != (b, h) or side.tail.shape[3] != d or side.coded.shape != (b, h):
        raise ValueError(f"{name}.tail must be {(b, h, 'r', d)}, coded {(b, h)}; got {side.tail.shape}, {side.coded.shape}")
    if side.tail.shape[2] <= side.sinks and (side.tail.shape[2] or side.sinks):
        raise ValueError(f"{name}.tail must have a row behind its {side.sinks} sinks; got {side.tail.shape[2]} in all")
