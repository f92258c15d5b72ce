"""Keys, or values, of a pool as codes, with exact rows beside them."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.types import Leaf, Number


@struct.dataclass
class Packed:
    """One side of a layer's regions.

    Attributes:
        words: uint32; by slot [s, w], codes along channels; by page of slots [s / page, w, d], codes along them.
        scale, low: a step and a minimum a group: [s, d / group]; [s / page, d].
        tail: exact rows [b, h, r, d]: a region's first `sinks` slots, and behind them slot j in row sinks + j mod (r - sinks).
        coded: int32 [b, h]: slots from here on, and the sinks, are read from `tail`.
        bits: of a code; 32 // bits of them a word, lowest bits first.
        page: slots of a page; 1 by slot.
    """

    words: PyTree
    scale: PyTree
    low: PyTree
    tail: PyTree
    coded: Int32[Array, "b h"] | Leaf
    bits: int = struct.field(pytree_node=False)
    page: int = struct.field(pytree_node=False, default=1)
    sinks: int = struct.field(pytree_node=False, default=0)

    @property
    def group(self) -> int:
        """Numbers that share a step."""
        return self.page if self.page > 1 else self.tail.shape[-1] // self.scale.shape[-1]

    def numbers(self, start: Int32[Array, "b h"], first: Number, size: int) -> Float32[Array, "b h n d"]:
        """Slots first .. first + size - 1 of every region, both whole pages, as numbers: codes restored, exact rows as they are."""
        index = ((start + first) // self.page)[..., None] + jnp.arange(size // self.page, dtype=jnp.int32)
        words, scale, low = (jnp.take(x, index, axis=0, mode="clip") for x in (self.words, self.scale, self.low))
        found = self._by_page(words, scale, low) if self.page > 1 else self._by_slot(words, scale, low)
        slot = jnp.broadcast_to(first + jnp.arange(size, dtype=jnp.int32), found.shape[:3])
        ring = self.tail.shape[2] - self.sinks
        if ring < 1:
            return found
        row = jnp.where(slot < self.sinks, slot, self.sinks + slot % ring)
        exact = jnp.take_along_axis(self.tail.astype(jnp.float32), row[..., None], 2)
        return jnp.where(((slot < self.sinks) | (slot >= self.coded[..., None]))[..., None], exact, found)

    def _by_slot(self, words: Array, scale: Array, low: Array) -> Float32[Array, "b h n d"]:
        codes = codes_of(words, self.bits)[..., : self.tail.shape[-1]].reshape(*scale.shape, -1)
        return _restored(codes, scale, low).reshape(*scale.shape[:3], -1)

    def _by_page(self, words: Array, scale: Array, low: Array) -> Float32[Array, "b h n d"]:
        codes = codes_of(jnp.swapaxes(words, -1, -2), self.bits)[..., : self.page]
        pages = jnp.swapaxes(_restored(codes, scale, low), -1, -2)
        return pages.reshape(*scale.shape[:2], -1, scale.shape[-1])


def codes_of(words: Array, bits: int) -> Float32[Array, "*a n"]:
    """All codes of words along the last axis."""
    shifts = jnp.uint32(bits) * jnp.arange(32 // bits, dtype=jnp.uint32)
    found = words[..., None] >> shifts & jnp.uint32((1 << bits) - 1)
    return found.reshape(*words.shape[:-1], -1).astype(jnp.float32)


def _restored(codes: Array, scale: Array, low: Array) -> Float32[Array, "*a n"]:
    """scale · code + low."""
    return scale.astype(jnp.float32)[..., None] * codes + low.astype(jnp.float32)[..., None]
