"""Prefill attention and its column sums: what is computed, and which implementation computes it."""

from jaxtyping import Array, Float, Float32, Int32

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `attention`, `column_sums` and both in one.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("prefill attention", IMPLEMENTATIONS, {"cudnn": "cuda", "native": "cpu"}, __package__)


def prefill_attention(
    q: Float[Array, "b h g t d"],
    k: Float[Array, "b h n d"],
    v: Float[Array, "b h n d"],
    *,
    offset: Int32[Array, ""] | int,
    window: int | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "b h g t d"], Float32[Array, "b h g t"]]:
    """Causal attention of t query rows at positions offset .. offset+t-1 over n keys at positions 0 .. n-1.

    out_i = sum_j p_ij v_j,  p_ij = exp(s_ij - lse_i),  s_ij = q_i . k_j / sqrt(d),  offset+i-window < j <= offset+i.

    Args:
        q: queries, g per KV head, rotated.
        k: keys, rotated; rows beyond the last query's position are not looked at, if they are finite.
        v: values.
        offset: position of the first query row; data, a new value does not retrace. offset + t <= n.
        window: sliding window in positions (None: all earlier keys); static, at least 1.
        impl: a key of IMPLEMENTATIONS, "native" (C++ on a CPU) or "cudnn" (NVIDIA; 16 bits, no window); None chooses by platform.

    Returns:
        The attention output in the dtype of q, and the log of the softmax denominator in float32.

    Raises:
        ValueError: shapes that do not fit, a window below 1, an implementation that is unknown or cannot run here.

    Source: Rabe and Staats, "Self-attention does not need O(n^2) memory", 2021, section 2 (the blockwise softmax).
    """
    _check(q, k, v, window=window)
    return _OPERATION.call(impl, "attention", q, k, v, offset, window=window)


def column_sums(
    q: Float[Array, "b h g t d"],
    k: Float[Array, "b h n d"],
    lse: Float32[Array, "b h g t"],
    *,
    offset: Int32[Array, ""] | int,
    length: Int32[Array, " b"],
    window: int | None = None,
    impl: str | None = None,
) -> Float32[Array, "b h g n"]:
    """The attention each key received from each query head, summed over query rows.

    c_j = sum_{i: offset+i < length} p_ij, with p as in `prefill_attention`, recomputed from its lse.

    Args:
        q: queries as given to `prefill_attention`.
        k: keys as given to it.
        lse: what it returned.
        offset: position of the first query row; data.
        length: real prompt tokens of each row; query rows at positions >= length are padding and do not count.
        window: as given to `prefill_attention`.
        impl: a key of IMPLEMENTATIONS, or "native" (C++ on a CPU); None chooses.

    Returns:
        Column sums in float32, zero for keys that no counted query sees. Chunks of a prompt add up.

    Raises:
        ValueError: shapes that do not fit, a window below 1, an unknown implementation.
    """
    _check(q, k, k, window=window)
    if lse.shape != q.shape[:-1]:
        raise ValueError(f"lse must be {q.shape[:-1]} for q {q.shape}, got {lse.shape}: pass what attention returned")
    _check_length(q, length)
    return _OPERATION.call(impl, "column_sums", q, k, lse, offset, length, window=window)


def attention_and_column_sums(
    q: Float[Array, "b h g t d"],
    k: Float[Array, "b h n d"],
    v: Float[Array, "b h n d"],
    *,
    offset: Int32[Array, ""] | int,
    length: Int32[Array, " b"],
    window: int | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "b h g t d"], Float32[Array, "b h g t"], Float32[Array, "b h g n"]]:
    """`prefill_attention` and `column_sums` of the same operands; where one pass over the scores can do both, as in C++, it does.

    Args:
        q, k, v, offset, window, impl: as for `prefill_attention`.
        length: as for `column_sums`.

    Returns:
        What the two return: output, log-denominators, sums of columns.

    Raises:
        ValueError: what the two refuse.
    """
    _check(q, k, v, window=window)
    _check_length(q, length)
    return _OPERATION.call(impl, "attention_and_column_sums", q, k, v, offset, length, window=window)


def _check_length(q, length) -> None:
    if length.shape != q.shape[:1]:
        raise ValueError(f"length must hold one integer a row, {q.shape[:1]}, got shape {length.shape}")


def _check(q, k, v, *, window: int | None) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    if q.ndim != 5 or k.ndim != 4:
        raise ValueError(f"q must be [b, h, g, t, d] and k, v [b, h, n, d]; got q {q.shape}, k {k.shape}")
    if k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"b, h and d of q, k and v must agree; got q {q.shape}, k {k.shape}, v {v.shape}")
    if q.shape[3] > k.shape[2]:
        raise ValueError(f"{q.shape[3]} query rows but {k.shape[2]} keys: pass the keys of the whole prompt so far")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 position (or None), got {window}")
