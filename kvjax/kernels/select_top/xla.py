"""The k largest in plain XLA: bisection on the keys' bits instead of a sort."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32, UInt32

#: Parts of a row whose comparisons are added to each other first.
_FOLDS = 16


@jax.jit
def select(rank, k):
    """See `api.select_top`; rows [r, n].

    Bisection between the smallest and the largest key above 0 finds a threshold that k keys reach, or all where there are fewer. It
    ends as soon as every row has one, after at most 32 halvings; only then are ties counted, if there are any.
    """
    reached = _counting(rank)
    low = jnp.min(jnp.where(rank == 0, jnp.uint32(0xFFFFFFFF), rank), -1)
    count = reached(low)
    k = jnp.minimum(k, count)

    def halve(state):
        low, high, count = state
        trial = high - (high - low) // 2
        many = reached(trial)
        enough, found = many >= k, count == k
        low, high = jnp.where(enough & ~found, trial, low), jnp.where(enough, high, trial - 1)
        return low, high, jnp.where(enough & ~found, many, count)

    def searching(state):
        return ((state[2] != k) & (state[1] > state[0])).any()

    low, _, count = lax.while_loop(searching, halve, (low, rank.max(-1), count))
    return lax.cond((count == k).all(), _at_least, _with_ties, rank, low[:, None], k[:, None])


def _counting(rank: UInt32[Array, "r n"]) -> Callable[[UInt32[Array, " r"]], Int32[Array, " r"]]:
    """The function that counts each row's keys at or above a threshold, which is above zero.

    A CPU compares signed numbers faster, and adds whole vectors of comparisons three times faster than along a row.
    """

    def signed(x):
        return lax.bitcast_convert_type(x ^ jnp.uint32(0x80000000), jnp.int32)

    padded = jnp.pad(rank, [(0, 0), (0, -rank.shape[-1] % _FOLDS)])
    parts = jnp.split(signed(padded), _FOLDS, axis=-1)
    return lambda threshold: sum((part >= signed(threshold)[:, None]).astype(jnp.int32) for part in parts).sum(-1)


def _at_least(rank, threshold, k):
    del k
    return (rank >= threshold) & (rank > 0)


def _with_ties(rank, threshold, k):
    """Keys above the threshold, then the first of those equal to it."""
    above, equal = rank > threshold, rank == threshold
    spare = k - above.sum(-1, keepdims=True, dtype=jnp.int32)
    return (above | (equal & (jnp.cumsum(equal, -1, dtype=jnp.int32) <= spare))) & (rank > 0)
