"""Positions of a pool's slots: one stored for each, or none where a slot's place in its region says it.

A pool that nothing is evicted from has `pos` of shape [s, 0]: slot j of every region holds token j of its row's text, and positions
take no bytes. It has a slot axis as any pool has, and is appended to, moved and saved as they are.
"""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Int32, Integer

from kvjax.types import Regions, SlotPositions


def in_order(pos: SlotPositions) -> bool:
    """Whether a slot's position is its place in its region."""
    return pos.ndim == 2


def unnumbered(slots: int, dtype: DTypeLike) -> Integer[Array, "s 0"]:
    """Positions of a pool whose slots are in order."""
    return jnp.zeros((slots, 0), dtype)


def positions_of(pos: SlotPositions, slots: Int32[Array, "*b n"], start: Int32[Array, "*b"]) -> Int32[Array, "*b n"]:
    """Positions of some slots of regions that begin at `start`; what a slot behind its region's last one gives is unspecified."""
    if in_order(pos):
        return slots - start[..., None]
    return jnp.take(pos, slots, mode="clip").astype(jnp.int32)


def rows_for(pos: SlotPositions, positions: Int32[Array, "*b"]) -> Integer[Array, "..."]:
    """What is appended to a pool's positions for new tokens at these."""
    return jnp.zeros((*positions.shape, 0), pos.dtype) if in_order(pos) else positions.astype(pos.dtype)


def numbered(pos: SlotPositions, start: Regions, capacity: Regions) -> Integer[Array, " s"]:
    """The same positions, one stored for each slot: what a pool needs before slots leave it. Slots of no region get 0."""
    if not in_order(pos):
        return pos
    begin, size = start.reshape(-1), capacity.reshape(-1)
    order = jnp.argsort(begin)
    slot = jnp.arange(pos.shape[0], dtype=jnp.int32)
    region = order[jnp.searchsorted(begin[order], slot, side="right") - 1]
    place = slot - begin[region]
    return jnp.where(place < size[region], place, 0).astype(pos.dtype)
