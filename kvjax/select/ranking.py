"""Exact top-k with a traced k: order-preserving integer keys, then bisection on their bits."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32

from kvjax.view import Ranking

_INVALID, _NAN, _PROTECTED = 0, 1, 0xFF800001
#: Parts of a row whose comparisons are added to each other first.
_FOLDS = 16


def keys(ranking: Ranking) -> UInt32[Array, "l b h n"]:
    """Unsigned keys whose order is the order of keeping.

    Invalid slots lowest, then NaN scores, then scores in float order; protected slots above every score, the later position
    first among themselves, so that a budget below the protected count keeps the most recent.
    """
    scores = ranking.scores.astype(jnp.float32)
    scores = jnp.where(scores == 0, 0.0, scores)  # -0.0 and 0.0 tie
    bits = lax.bitcast_convert_type(scores, jnp.uint32)
    ordered = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))
    ordered = jnp.where(jnp.isnan(scores), jnp.uint32(_NAN), jnp.maximum(ordered, _NAN + 1))
    raised = jnp.uint32(_PROTECTED) + jnp.clip(ranking.pos, 0, (1 << 22) - 1).astype(jnp.uint32)
    ordered = jnp.where(ranking.protected, raised, ordered)
    return jnp.where(ranking.valid, ordered, jnp.uint32(_INVALID))


def top(rank: UInt32[Array, "... n"], k: Int32[Array, "..."]) -> Bool[Array, "... n"]:
    """Mask of the k largest keys along the last axis; equal keys by lower index; never an invalid slot.

    k is data: bisection between the smallest and the largest valid key finds a threshold that k keys reach, so one program serves
    every budget. It ends as soon as every row has one, after at most 32 halvings; only then are ties counted, if there are any.
    """
    reached = _counting(rank)

    def halve(state):
        low, high, count = state
        trial = high - (high - low) // 2
        many = reached(trial)
        enough, found = many >= k, count == k
        low, high = jnp.where(enough & ~found, trial, low), jnp.where(enough, high, trial - 1)
        return low, high, jnp.where(enough & ~found, many, count)

    low = jnp.min(jnp.where(rank == _INVALID, jnp.uint32(0xFFFFFFFF), rank), -1)
    searching = lambda state: ((state[2] != k) & (state[1] > state[0])).any()  # noqa: E731
    low, _, count = lax.while_loop(searching, halve, (low, rank.max(-1), reached(low)))
    return lax.cond((count == k).all(), _at_least, _with_ties, rank, low[..., None], k[..., None])


def _counting(rank: UInt32[Array, "... n"]) -> Callable[[UInt32[Array, "..."]], Int32[Array, "..."]]:
    """The function that counts each row's keys at or above a threshold, which is above zero.

    A CPU compares signed numbers faster, and adds whole vectors of comparisons three times faster than along a row.
    """
    signed = lambda x: lax.bitcast_convert_type(x ^ jnp.uint32(0x80000000), jnp.int32)  # noqa: E731
    padded = jnp.pad(rank, [(0, 0)] * (rank.ndim - 1) + [(0, -rank.shape[-1] % _FOLDS)], constant_values=_INVALID)
    parts = jnp.split(signed(padded), _FOLDS, axis=-1)
    return lambda threshold: sum((part >= signed(threshold)[..., None]).astype(jnp.int32) for part in parts).sum(-1)


def _at_least(rank, threshold, k):
    del k
    return (rank >= threshold) & (rank != _INVALID)


def _with_ties(rank, threshold, k):
    """Keys above the threshold, then the first of those equal to it."""
    above, equal = rank > threshold, rank == threshold
    spare = k - above.sum(-1, keepdims=True, dtype=jnp.int32)
    return (above | (equal & (jnp.cumsum(equal, -1, dtype=jnp.int32) <= spare))) & (rank != _INVALID)
