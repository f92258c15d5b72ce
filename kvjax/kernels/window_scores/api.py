"""Attention of an observation window: what is computed, and which implementation computes it."""

from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations by name; each module defines `scores`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("window scores", IMPLEMENTATIONS, {"native": "cpu"}, __package__, reversed_as={"scores": "reference"})


def window_scores(
    q: Float[Array, "b h g w d"],
    k: Float[Array, "b h n d"],
    *,
    pos: Int32[Array, "b h n"],
    valid: Bool[Array, "b h n"],
    length: Int32[Array, " b"],
    window: Int32[Array, " b"] | None = None,
    impl: str | None = None,
) -> Float32[Array, "b h g n"]:
    """Attention each slot gets from the last w queries of a text of length[b] tokens, summed over these queries.

    c_j = sum_i p_ij,  p_ij = exp(s_ij) / sum_{j seen by i} exp(s_ij),  s_ij = q_i . k_j / sqrt(d);
    query i stands at position length - w + i and sees the valid slots with pos_j <= length - w + i.

    Args:
        q: the last w queries, oldest first, rotated; those before the first token of a short text count nothing. w may be 0.
        k: keys in any order, rotated; rows that are not valid may hold anything, NaN included.
        pos: position of each slot's token.   valid: which slots hold one.
        length: tokens of text so far; data, as are pos and valid.
        window: the layer's sliding window, by row: query i sees the last `window` positions up to its own; None for all.
        impl: a key of IMPLEMENTATIONS or "native" (CPU, without sliding windows); None chooses by platform.

    Returns:
        Sums in float32, 0 where not valid; divided by min(w, length) they are means. With w = 1: the query's probabilities.
        Beside operands and result, xla holds one block of scores, native those of a KV head's window (and up to 16 MB of others).

    Raises:
        ValueError: shapes that do not fit, an unknown implementation.

    Source: SnapKV, arXiv 2404.14469, section 4 (the window's votes, before pooling); the softmax in two passes as in Rabe and
    Staats, 2021, section 2.
    """
    _check(q, k, pos, valid, length)
    if window is not None and window.shape != length.shape:
        raise ValueError(f"a sliding window is a number for each row, {length.shape}; got {window.shape}")
    return _OPERATION.call(impl, "scores", q, k, pos, valid, length, *(() if window is None else (window,)))


def _check(q, k, pos, valid, length) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    if q.ndim != 5 or k.ndim != 4 or q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"q must be [b, h, g, w, d] and k [b, h, n, d]; got q {q.shape}, k {k.shape}")
    if pos.shape != k.shape[:3] or valid.shape != k.shape[:3] or length.shape != q.shape[:1]:
        raise ValueError(
            f"pos and valid must be {k.shape[:3]} (b, h, n) and length {q.shape[:1]}; "
            f"got {pos.shape}, {valid.shape} and {length.shape}"
        )
