"""Codes of whole tokens, all heads together, after each channel is divided by its own size (ZipCache's values)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int32, PyTree

from kvjax.codec.affine import BITS, STORES, affine, restored
from kvjax.codec.codec import Codec
from kvjax.codec.packing import pack, unpack, words
from kvjax.types import Keys, Mask, Number


@struct.dataclass
class SeparableRows:
    """words [.., w], scale [..], low [..] by slot; size [.., d] by page, None where a prompt's serves all.   Or their shapes."""

    words: PyTree
    scale: PyTree
    low: PyTree
    size: Number = None


def channel_size(x: Float[Array, "*a n d"], valid: Array, store: DTypeLike) -> Float[Array, "*a d"]:
    """c_j = sqrt(max_t |x_tj|) over valid rows, rounded to `store`; 1 where that is 0."""
    size = jnp.sqrt(jnp.where(valid[..., None], jnp.abs(x.astype(jnp.float32)), 0.0).max(-2)).astype(store)
    return jnp.where(size > 0, size, jnp.ones((), size.dtype))


@struct.dataclass
class ChannelSeparable(Codec):
    """x_tj ≈ c_j (s_t code + m_t), c_j = sqrt(max_t |x_tj|), s and m over the channels of all heads of a row.

    Args:
        bits: 1, 2, 3, 4 or 8.
        block: slots that share their own c; 0: a prompt's is fitted, and stays for what follows.
        store: dtype of c, of steps and of minima.

    A row is the i-th slot of every head, whichever tokens these are; zeros of a head that holds fewer. Its step and minimum are
    kept with each head's slot: b + 32 / d bits a number, and 16 / n, or 16 / block, for c.
    Source: ZipCache, arXiv 2405.14256, section 4.1, algorithm 1. Differs: it divides in float32, the release in the data's dtype.
    Raises: ValueError for other bits or another store.
    """

    across_heads: ClassVar[bool] = True
    bits: int = struct.field(pytree_node=False, default=4)
    block: int = struct.field(pytree_node=False, default=0)
    store: str = struct.field(pytree_node=False, default="float16")

    def __post_init__(self):
        if self.bits not in BITS or self.store not in STORES or self.block < 0:
            raise ValueError(f"codes are of {BITS} bits, steps of one of {STORES}; got {self!r}")

    @property
    def page(self) -> int:
        return max(1, self.block)

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> SeparableRows:
        del dtype
        store = jnp.dtype(self.store)
        size = jnp.zeros((slots // self.block, d), store) if self.block else None

        def one():
            return jnp.zeros(slots, store)

        return SeparableRows(jnp.zeros((slots, words(d, self.bits)), jnp.uint32), one(), one(), size)

    def fit(self, x: Keys, valid: Mask) -> PyTree:
        return channel_size(x, valid, self.store)

    @property
    def fitted(self) -> bool:
        return self.block == 0

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> SeparableRows:
        del pos
        b, h, n, d = x.shape
        if self.block:
            pages = x.reshape(b, h, n // self.block, self.block, d)
            size = channel_size(pages, jnp.ones(pages.shape[:-1], bool), self.store)
            divided = x.astype(jnp.float32) / jnp.repeat(size.astype(jnp.float32), self.block, 2)
        else:
            size = None
            divided = x.astype(jnp.float32) / params[:, :, None].astype(jnp.float32)
        codes, scale, low = affine(jnp.swapaxes(divided, 1, 2).reshape(b, n, h * d), self.bits, self.store)
        codes = jnp.swapaxes(codes.reshape(b, n, h, d), 1, 2)
        scale, low = (jnp.broadcast_to(y[:, None], (b, h, n)) for y in (scale, low))
        return SeparableRows(pack(codes, self.bits), scale, low, size)

    def decode(self, rows: SeparableRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        size = jnp.repeat(rows.size, self.block, 2) if self.block else params[:, :, None]
        numbers = restored(unpack(rows.words, size.shape[-1], self.bits), rows.scale, rows.low)
        return (numbers * size.astype(jnp.float32)).astype(dtype)
