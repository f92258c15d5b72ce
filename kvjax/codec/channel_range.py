"""Codes whose step and minimum a channel has for all slots of a prompt (ZipCache's keys)."""

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int32, PyTree, UInt32

from kvjax.codec.affine import BITS, STORES, levels, restored
from kvjax.codec.codec import Codec
from kvjax.codec.packing import pack, unpack, words
from kvjax.types import Keys, Mask


@struct.dataclass
class Range:
    """scale, low: [.., h, d], step and minimum of each channel."""

    scale: Float[Array, "*b h d"]
    low: Float[Array, "*b h d"]


@struct.dataclass
class ChannelRange(Codec):
    """Codes of `bits` bits, one step and one minimum a channel for all slots that a prompt leaves in a head.

    Args:
        bits: 1, 2, 3, 4 or 8.
        store: dtype of steps and minima.

    What comes later is clipped to that range. Takes b bits a number, and 32 / n for n slots.
    Source: ZipCache, arXiv 2405.14256, section 4.1, keys.
    Raises: ValueError for other bits or another store.
    """

    bits: int = struct.field(pytree_node=False, default=4)
    store: str = struct.field(pytree_node=False, default="float16")

    def __post_init__(self):
        if self.bits not in BITS or self.store not in STORES:
            raise ValueError(f"codes are of {BITS} bits, steps of one of {STORES}; got {self.bits} and {self.store!r}")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> UInt32[Array, "s w"]:
        del dtype
        return jnp.zeros((slots, words(d, self.bits)), jnp.uint32)

    def fit(self, x: Keys, valid: Mask) -> Range:
        x, held = x.astype(jnp.float32), valid[..., None]
        some = valid.any(-1)[..., None]
        low = jnp.where(some, jnp.where(held, x, jnp.inf).min(2), 0.0)
        high = jnp.where(some, jnp.where(held, x, -jnp.inf).max(2), 0.0)
        return Range(((high - low) / levels(self.bits)).astype(self.store), low.astype(self.store))

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> UInt32[Array, "b h n w"]:
        del pos
        scale, low = (y[:, :, None].astype(jnp.float32) for y in (params.scale, params.low))
        codes = jnp.round((x.astype(jnp.float32) - low) / jnp.where(scale > 0, scale, 1.0))
        return pack(jnp.clip(codes, 0, (1 << self.bits) - 1).astype(jnp.int32), self.bits)

    def decode(self, rows: UInt32[Array, "b h n w"], dtype: DTypeLike, params: PyTree = ()) -> Keys:
        codes = jnp.swapaxes(unpack(rows, params.scale.shape[-1], self.bits), 2, 3)
        return jnp.swapaxes(restored(codes, params.scale, params.low), 2, 3).astype(dtype)
