"""Scores from codes: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float, Float32, Int32, UInt

from kvjax.kernels.dispatch import Operation
from kvjax.types import SlotPositions

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `scores`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("codebook scores", IMPLEMENTATIONS, {"triton": "cuda", "native": "cpu"}, __package__)


def codebook_scores(
    q: Float[Array, "b h g t d"],
    codes: UInt[Array, "s m"],
    codebook: Float[Array, "h m1 c e"],
    pos: SlotPositions,
    start: Int32[Array, "b h"],
    length: Int32[Array, "b h"],
    q_pos: Int32[Array, "b t"],
    *,
    cap: int,
    window: int | None = None,
    impl: str | None = None,
) -> Float32[Array, "b h g t cap"]:
    """Scores of every query over its region, by table look-up: s_ij = (1 / sqrt(d)) sum_m T_i[m, code_jm], else -inf.

    T_i[m, c] = q_i^(m) . codebook[m, c], the m-th of the query's groups of e = d / m contiguous channels against each centroid;
    s_ij equals the product of q_i with the key whose groups are the centroids that codes_j names.

    Args:
        q: queries, rotated, g per KV head.
        codes: the pool's keys as centroid indices, m a slot, uint8 or uint16.
        codebook: a KV head's centroids; m1 is m, or 1 where all groups share one codebook.
        pos, start, length, q_pos, window: as in `ragged_attention`.
        cap: slots of the widest region; static. Slots of a region beyond `cap` are left out.
        impl: a key of IMPLEMENTATIONS, "native" (CPU) or "triton" (NVIDIA); None chooses by platform.

    Returns:
        Scores in float32, -inf where the query does not see the slot or the region ends.

    Raises:
        ValueError: shapes that do not fit, an implementation that is unknown or cannot run here.

    Source: HCAttention, arXiv 2507.19823, equation 3.
    """
    _check(q, codes, codebook, cap)
    return _OPERATION.call(impl, "scores", q, codes, codebook, pos, start, length, q_pos, cap=cap, window=window)


def _check(q, codes, codebook, cap: int) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    d, groups, (h, m, c, e) = q.shape[-1], codes.shape[1], codebook.shape
    if groups * e != d or m not in (1, groups) or h != q.shape[1]:
        raise ValueError(
            f"{groups} codes a slot and codebooks of {e} channels make {groups * e} of the query's {d} channels, in {m} codebooks "
            f"of {h} heads: codes [s, m], codebook [h, m or 1, c, d / m] and q [b, h, g, t, d] must agree"
        )
    if c > 1 << (8 * codes.dtype.itemsize):
        raise ValueError(f"{c} centroids do not fit codes of dtype {codes.dtype}: store them as uint16")
    if cap < 1:
        raise ValueError(f"cap must be at least 1 slot, got {cap}")
