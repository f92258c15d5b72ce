"""Sparse prefill attention: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float32, Int32

from kvjax.kernels.dispatch import Operation
from kvjax.types import Keys, Queries, Values

from . import reference, xla
from .chosen import BLOCK, Chosen

#: Implementations that run anywhere, by name; each module defines `attention`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("sparse prefill attention", IMPLEMENTATIONS, {"native": "cpu"}, __package__)


def sparse_attention(
    q: Queries, k: Keys, v: Values, chosen: Chosen, *, offset: Int32[Array, ""], impl: str | None = None
) -> tuple[Queries, Float32[Array, "b h g t"]]:
    """Attention of t query rows at positions offset .. offset+t-1 over the keys that `chosen` lets each see.

    out_i = Σ_j p_ij v_j over the j it sees,  p_ij = exp(s_ij - lse_i),  s_ij = q_i . k_j / sqrt(d).

    Args:
        q: queries, g per KV head, rotated.
        k: keys, rotated, at positions 0 .. n-1.
        v: values.
        chosen: what each query head sees; every row has to see a key.
        offset: position of the first query row, a multiple of 64; data, a new value does not retrace. offset + t <= n.
        impl: a key of IMPLEMENTATIONS or "native" (C++ on a CPU); None chooses by platform.

    Returns:
        The attention output in the dtype of q, and the log of the softmax denominator in float32.

    Raises:
        ValueError: shapes that do not fit, an implementation that is unknown or cannot run here.

    Source: the block-sparse kernel that MInference (arXiv 2407.02490, section 3) needs; here the mask is exact within a tile.
    """
    wanted = tuple(-(-size // BLOCK) for size in (q.shape[3], k.shape[2]))
    if chosen.blocks.shape[3:] != wanted or chosen.offsets.shape[3] != k.shape[2]:
        raise ValueError(
            f"chosen must have {k.shape[2]} offsets and {wanted} blocks for q {q.shape} and k {k.shape};"
            f" got {chosen.offsets.shape[3]} and {chosen.blocks.shape[3:]}"
        )
    return _OPERATION.call(impl, "attention", q, k, v, chosen, offset)
