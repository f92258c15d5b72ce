"""One layer's regions of a pool, as codecs read them."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.slot_positions import positions_of
from kvjax.types import Number, SlotPositions


def page_of(leaf: PyTree, slots: int) -> int:
    """Slots that share a row of `leaf`, one of the arrays of a pool of `slots`."""
    return slots // leaf.shape[0]


@dataclass(frozen=True)
class LayerRegions:
    """Where a layer's regions stand in a pool; made inside a program, never handed into one.

    Attributes:
        pool: the rows of all slots: an array, or a pytree of arrays with a row for each slot or for each page of slots.
        pos: position of each slot's token.
        start, length: first slot and slots of each region.
        positions: position of each query, int32 [b, t].
        padded_slots: a bound on the slots of a region.
        window: the layer's sliding window, None for full attention.
        bias: of each slot, added to its scores; None for none.
    """

    pool: PyTree
    pos: SlotPositions
    start: Int32[Array, "b h"]
    length: Int32[Array, "b h"]
    positions: Int32[Array, "b t"]
    padded_slots: int
    window: int | None = None
    bias: Float32[Array, " s"] | None = None

    def replace(self, **changes: object) -> "LayerRegions":
        """The same regions with some fields changed."""
        return replace(self, **changes)

    def rows(self, first: Number, size: int) -> PyTree:
        """Rows of the slots first .. first + size - 1 of every region, both whole pages: leaves [b, h, size / page, ...]."""

        def take(leaf: Array) -> Array:
            page = page_of(leaf, self.pos.shape[0])
            index = ((self.start + first) // page)[..., None] + jnp.arange(size // page, dtype=jnp.int32)
            return jnp.take(leaf, index, axis=0, mode="clip")

        return jax.tree.map(take, self.pool)

    def held(self, first: Number, size: int) -> Bool[Array, "b h n"]:
        """Which of these slots are in use."""
        return first + jnp.arange(size, dtype=jnp.int32) < self.length[..., None]

    def seen(self, first: Number, size: int) -> Bool[Array, "b h _ t n"]:
        """Which of these slots each query may look at; a single query without a sliding window sees all that are in use."""
        held = self.held(first, size)[:, :, None, None]
        if self.positions.shape[1] == 1 and self.window is None:
            return held
        slots = (self.start + first)[..., None] + jnp.arange(size, dtype=jnp.int32)
        pos = positions_of(self.pos, slots, self.start)[:, :, None, None]
        now = self.positions[:, None, None, :, None]
        seen = held & (pos <= now)
        return seen if self.window is None else seen & (pos > now - self.window)
