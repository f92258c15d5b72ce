"""Which slots of a region fill which holes: as many moves as there are holes, whatever the region's size."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32


class Moves(NamedTuple):
    """What one eviction moves.

    Attributes:
        length: slots each region holds afterwards.
        sources, targets: offsets in the region of the slots to copy and of the holes they fill, ascending; the first `count` count.
        count: moves of each region.
    """

    length: Int32[Array, "b h"]
    sources: Int32[Array, "b h n"]
    targets: Int32[Array, "b h n"]
    count: Int32[Array, "b h"]


def first(mask: Bool[Array, "b h n"]) -> Int32[Array, "b h n"]:
    """Indices of the slots in `mask`, ascending, then zeros; each written where it belongs, at a third of the cost of sorting."""
    n = mask.shape[-1]
    i = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), mask.shape)
    where = jnp.where(mask, jnp.cumsum(mask, -1, dtype=jnp.int32) - 1, n)
    return jnp.put_along_axis(jnp.zeros_like(i), where, i, -1, inplace=False, mode="drop")


def plan(keep: Bool[Array, "b h n"], valid: Bool[Array, "b h n"]) -> Moves:
    """The holes below a region's new end, and the kept slots above it, in ascending order.

    Args:
        keep: slots that stay.   valid: slots in use, the first of each region.
    """
    i = jnp.arange(keep.shape[-1], dtype=jnp.int32)
    length = keep.sum(-1).astype(jnp.int32)
    low = i < length[..., None]
    above = keep & ~low
    return Moves(length=length, sources=first(above), targets=first(valid & ~keep & low), count=above.sum(-1).astype(jnp.int32))
