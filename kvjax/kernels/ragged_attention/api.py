"""Ragged attention over a packed pool: what is computed, and which implementation computes it."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from kvjax.kernels.dispatch import Operation
from kvjax.types import SlotPositions

from . import reference, xla

#: Implementations that run anywhere, by name; each module defines `attention`, `scores` and `attention_with_weights`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_KERNELS = {"triton": "cuda", "native": "cpu"}
_OPERATION = Operation(
    "ragged attention", IMPLEMENTATIONS, _KERNELS, __package__, by_name={"mosaic": "cuda"}, reversed_as={"scores": "reference"}
)


def ragged_attention(
    q: Float[Array, "b h g t d"],
    k: Float[Array, "s d"],
    v: Float[Array, "s d"],
    pos: SlotPositions,
    start: Int32[Array, "b h"],
    length: Int32[Array, "b h"],
    q_pos: Int32[Array, "b t"],
    *,
    bias: Float32[Array, " s"] | None = None,
    window: int | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "b h g t d"], Float32[Array, "b h g t"]]:
    """Attention of query i of region (b, h) over the slots j in start .. start+length-1 of the pool that it sees.

    out_i = sum_j p_ij v_j,  p_ij = exp(s_ij - lse_i),  s_ij = q_i . k_j / sqrt(d) + bias_j,
    seen: pos_j <= q_pos_i, and pos_j > q_pos_i - window where a window is given. A single query (t = 1) without a
    window sees every slot of its region: the pool holds its past.

    Args:
        q: queries, rotated, g per KV head.
        k: the pool's keys, rotated; slots outside the regions may hold anything, NaN included.
        v: the pool's values.
        pos: position of each slot's token; [s, 0] where the j-th slot of a region holds token j.
        start: first slot of each region, a multiple of 8; data.
        length: slots of each region, 0 allowed; data, a new value does not retrace.
        q_pos: position of each query.
        bias: of each slot, added to its scores (None: 0); outside the regions anything.
        window: sliding window in positions (None: none); static.
        impl: a key of IMPLEMENTATIONS, "native" (CPU), "triton" (NVIDIA) or "mosaic" (Hopper, without bias, not yet measured
            there); None chooses by platform.

    Returns:
        The output in the dtype of q and the log of the softmax denominator in float32; 0 and -inf where nothing is
        seen. Scores, weights and sums are float32; where q, k and v are all in 16 bits, GPU kernels, and C++ on processors
        that multiply pairs of bfloat16, round weights to that dtype for their products with v, not for the denominator.
        The pool must reach at least 256 slots beyond the last region (`dynamic_slice` clamps: a shifted block would be
        read as the wrong slots).

    Raises:
        ValueError: shapes that do not fit, a window below 1, an implementation that is unknown or cannot run here.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 3 (the running
    maximum and denominator).
    """
    _check(q, k, v, pos, start, length, q_pos, window, bias)
    return _OPERATION.call(impl, "attention", q, k, v, pos, start, length, q_pos, bias, window=window)


def attention_with_weights(
    q: Float[Array, "b h g t d"],
    k: Float[Array, "s d"],
    v: Float[Array, "s d"],
    pos: SlotPositions,
    start: Int32[Array, "b h"],
    length: Int32[Array, "b h"],
    q_pos: Int32[Array, "b t"],
    *,
    heads: tuple[int, ...],
    upto: Int32[Array, "b p"],
    cap: int,
    bias: Float32[Array, " s"] | None = None,
    window: int | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "b h g t d"], Float32[Array, "b h g t"], Float32[Array, "b p g t cap"]]:
    """`ragged_attention`, and the probabilities of some KV heads among the first slots of their regions.

    a_ij = exp(s_ij) / sum_{j' < upto} exp(s_ij')  for j < upto, else 0: with `upto` = `length` the attention weights themselves.

    Args:
        q, k, v, pos, start, length, q_pos, bias, window, impl: as given to `ragged_attention`; "native" reads every key once for
            both results, the others twice.
        heads: the KV heads whose probabilities are wanted, each once; static.
        upto: slots of their regions that they are about; data. No more than `length`, or than `cap`, count.
        cap: slots a row of probabilities is padded to; static.

    Returns:
        The output and log denominator of `ragged_attention`, to the bit, and the probabilities, float32 (0 where nothing is seen).

    Raises:
        ValueError: those of `ragged_attention`; heads that the model lacks or that come twice, a cap below 1.
    """
    _check(q, k, v, pos, start, length, q_pos, window, bias)
    if len(set(heads)) < len(heads) or not all(0 <= h < q.shape[1] for h in heads) or upto.shape != (q.shape[0], len(heads)):
        raise ValueError(
            f"heads must be different ones below {q.shape[1]}, and upto [b, heads]; got heads {heads} and upto {upto.shape} "
            f"for {q.shape[0]} rows"
        )
    _check_cap(cap)
    operands = q, k, v, pos, start, length, q_pos, upto, bias
    return _OPERATION.call(impl, "attention_with_weights", *operands, heads=heads, cap=cap, window=window)


def ragged_scores(
    q: Float[Array, "b h g t d"],
    k: Float[Array, "s d"],
    pos: SlotPositions,
    start: Int32[Array, "b h"],
    length: Int32[Array, "b h"],
    q_pos: Int32[Array, "b t"],
    *,
    cap: int,
    bias: Float32[Array, " s"] | None = None,
    window: int | None = None,
    impl: str | None = None,
) -> Float32[Array, "b h g t cap"]:
    """The scores of `ragged_attention`, padded to `cap` slots a region: s_ij = q_i . k_j / sqrt(d) + bias_j, else -inf.

    Args:
        q, k, pos, start, length, q_pos, bias, window, impl: as given to `ragged_attention`.
        cap: slots of the widest region; static. Slots of a region beyond `cap` are left out.

    Returns:
        Scores in float32, -inf where the query does not see the slot; exp(s - lse) are the probabilities.

    Raises:
        ValueError: shapes that do not fit, a window or cap below 1, an implementation that is unknown or cannot run here.
    """
    _check(q, k, k, pos, start, length, q_pos, window, bias)
    _check_cap(cap)
    return _OPERATION.call(impl, "scores", q, k, pos, start, length, q_pos, bias, cap=cap, window=window)


def log_denominator(scores: Float32[Array, "b h g t n"]) -> Float32[Array, "b h g t"]:
    """log Σ_n exp(scores), -inf where a query sees nothing."""
    high = jnp.maximum(scores.max(-1), xla.LOW)
    total = jnp.exp(scores - high[..., None]).sum(-1)
    return jnp.where(total > 0, high + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)


def probabilities(scores: Float32[Array, "b h g t n"], lse: Float32[Array, "b h g t"]) -> Float32[Array, "b h g t n"]:
    """exp(scores - lse), zero where a query sees nothing."""
    return jnp.exp(scores - jnp.maximum(lse, xla.LOW)[..., None])


def _check_cap(cap: int) -> None:
    if cap < 1:
        raise ValueError(f"cap must be at least 1 slot, got {cap}")


def check_bias(bias, k) -> None:
    """Refuse what is not one number for each slot of the pool k."""
    if bias is not None and (bias.shape != k.shape[:1] or bias.dtype != jnp.float32):
        raise ValueError(f"bias must be float32 [{k.shape[0]}], one a slot; got {bias.dtype} {bias.shape}")


def _check(q, k, v, pos, start, length, q_pos, window, bias) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    if q.ndim != 5 or k.ndim != 2 or k.shape != v.shape or k.shape[1] != q.shape[-1] or pos.shape[:1] != k.shape[:1]:
        raise ValueError(
            f"q must be [b, h, g, t, d], k and v [s, d] and pos [s]; got q {q.shape}, k {k.shape}, v {v.shape}, pos {pos.shape}"
        )
    if start.shape != q.shape[:2] or length.shape != q.shape[:2]:
        raise ValueError(f"start and length must be {q.shape[:2]} (b, h), got {start.shape} and {length.shape}")
    if q_pos.shape != (q.shape[0], q.shape[3]):
        raise ValueError(f"q_pos must be {(q.shape[0], q.shape[3])} (b, t), got {q_pos.shape}")
    check_bias(bias, k)
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 position (or None), got {window}")
