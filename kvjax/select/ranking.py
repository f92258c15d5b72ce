"""Exact top-k with a traced k: order-preserving integer keys, then bisection on their bits."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32

from kvjax.view import Ranking

_INVALID, _NAN, _PROTECTED = 0, 1, 0xFF800001


def keys(ranking: Ranking) -> UInt32[Array, "l b h n"]:
    """Unsigned keys whose order is the order of keeping.

    Invalid slots lowest, then NaN scores, then scores in float order; protected slots above every score, the later position
    first among themselves, so that a budget below the protected count keeps the most recent.
    """
    scores = ranking.scores.astype(jnp.float32) + 0.0  # -0.0 and 0.0 tie
    bits = lax.bitcast_convert_type(scores, jnp.uint32)
    ordered = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))
    ordered = jnp.where(jnp.isnan(scores), jnp.uint32(_NAN), jnp.maximum(ordered, _NAN + 1))
    raised = jnp.uint32(_PROTECTED) + jnp.clip(ranking.pos, 0, (1 << 22) - 1).astype(jnp.uint32)
    ordered = jnp.where(ranking.protected, raised, ordered)
    return jnp.where(ranking.valid, ordered, jnp.uint32(_INVALID))


def top(rank: UInt32[Array, "... n"], k: Int32[Array, "..."]) -> Bool[Array, "... n"]:
    """Mask of the k largest keys along the last axis; equal keys by lower index; never an invalid slot.

    k is data: 32 halvings find the k-th key, so one program serves every budget.
    """

    def halve(i, threshold):
        trial = threshold | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        enough = (rank >= trial[..., None]).sum(-1) >= k
        return jnp.where(enough, trial, threshold)

    threshold = lax.fori_loop(0, 32, halve, jnp.zeros(k.shape, jnp.uint32))[..., None]
    above, equal = rank > threshold, rank == threshold
    spare = k[..., None] - above.sum(-1, keepdims=True)
    return (above | (equal & (jnp.cumsum(equal, -1) <= spare))) & (rank != _INVALID)
