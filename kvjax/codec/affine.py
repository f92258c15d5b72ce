"""Asymmetric affine codes of a few bits: one step and one minimum a group of tokens, or of channels (KIVI)."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.codec.codec import Codec
from kvjax.codec.packing import pack, unpack, words
from kvjax.protocols import Decoder
from kvjax.types import Keys

BITS = (1, 2, 3, 4, 8)
STORES = ("float16", "bfloat16", "float32")


@struct.dataclass
class AffineRows:
    """Codes in 32-bit words, and the step and the minimum of each group.

    Attributes:
        words: [.., w] by slot, codes along channels; [.., w, d] by page, codes along tokens.
        scale, low: [.., d / group] by slot; [.., d] by page.   Arrays, or their shapes.
    """

    words: PyTree
    scale: PyTree
    low: PyTree


def levels(bits: int) -> Float32[Array, ""]:
    """2^b - 1, to divide by: a constant would be multiplied with as its rounded reciprocal."""
    return lax.optimization_barrier(jnp.float32((1 << bits) - 1))


def affine(
    x: Float[Array, "*a g"], bits: int, store: DTypeLike
) -> tuple[Int32[Array, "*a g"], Float[Array, "*a"], Float[Array, "*a"]]:
    """(codes, s, mn) of groups along the last axis.

    s = (max - min) / (2^b - 1) and mn = min, both rounded to `store`; code = clip(round((x - mn) / s), 0, 2^b - 1), halves to the
    even code. A constant group has s = 0 and codes 0.
    """
    x, top = x.astype(jnp.float32), (1 << bits) - 1
    low = x.min(-1)
    scale, low = ((x.max(-1) - low) / levels(bits)).astype(store), low.astype(store)
    step = jnp.where(scale > 0, scale, jnp.ones((), scale.dtype)).astype(jnp.float32)
    codes = jnp.round((x - low.astype(jnp.float32)[..., None]) / step[..., None])
    return jnp.clip(codes, 0, top).astype(jnp.int32), scale, low


def restored(codes: Int32[Array, "*a g"], scale: Float[Array, "*a"], low: Float[Array, "*a"]) -> Float32[Array, "*a g"]:
    """x^ = s · code + mn."""
    return scale.astype(jnp.float32)[..., None] * codes + low.astype(jnp.float32)[..., None]


@struct.dataclass
class Affine(Codec):
    """Codes of `bits` bits, one step and one minimum for each group of `group` numbers.

    Args:
        bits: 1, 2, 3, 4 or 8.
        group: numbers of a group.
        reduce: "channel": a group is `group` channels of one token. "token": it is `group` tokens of one channel, so that they are
            a page of slots coded together; while decoding this needs a window whose blocks are whole pages.
        store: dtype of steps and minima, rounded to it before the division, so that coding and decoding use the same numbers.

    Takes b + 32 / group bits a number with a 16-bit `store`; 3-bit codes are ten a word, and groups of them fill whole words.
    Source: KIVI, arXiv 2402.02750, equation 1. Differs: it subtracts and divides in float32, the release in the data's 16 bits.
    Raises: ValueError for other bits, groups below 1 or of something else, another store; for groups that do not divide the head
    dimension, when compressing.
    """

    bits: int = struct.field(pytree_node=False, default=2)
    group: int = struct.field(pytree_node=False, default=32)
    reduce: str = struct.field(pytree_node=False, default="channel")
    store: str = struct.field(pytree_node=False, default="float16")

    def __post_init__(self):
        if self.bits not in BITS:
            raise ValueError(f"affine codes are of {BITS} bits; got {self.bits}")
        if self.group < 1 or self.reduce not in ("token", "channel"):
            raise ValueError(f'groups are of 1 or more numbers over reduce="token" or "channel"; got {self.group}, {self.reduce!r}')
        if self.store not in STORES:
            raise ValueError(f"steps and minima are stored as one of {STORES}; got {self.store!r}")

    @property
    def page(self) -> int:
        return self.group if self.reduce == "token" else 1

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        del length, mean_budget
        if self.reduce == "channel" and model.head_dim % self.group:
            raise ValueError(f"groups of {self.group} channels do not divide the model's head dimension {model.head_dim}")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> AffineRows:
        del dtype
        store = jnp.dtype(self.store)
        if self.reduce == "token":
            pages = slots // self.group
            codes = jnp.zeros((pages, words(self.group, self.bits), d), jnp.uint32)
            return AffineRows(codes, jnp.zeros((pages, d), store), jnp.zeros((pages, d), store))
        meta = (slots, d // self.group)
        return AffineRows(jnp.zeros((slots, words(d, self.bits)), jnp.uint32), jnp.zeros(meta, store), jnp.zeros(meta, store))

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> AffineRows:
        del pos, params
        b, h, n, d = x.shape
        if self.reduce == "channel":
            codes, scale, low = affine(x.reshape(b, h, n, d // self.group, self.group), self.bits, self.store)
            return AffineRows(pack(codes.reshape(x.shape), self.bits), scale, low)
        pages = jnp.swapaxes(x.reshape(b, h, n // self.group, self.group, d), -1, -2)
        codes, scale, low = affine(pages, self.bits, self.store)
        return AffineRows(jnp.swapaxes(pack(codes, self.bits), -1, -2), scale, low)

    def decode(self, rows: AffineRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        scale = rows.scale
        if self.reduce == "channel":
            d = scale.shape[-1] * self.group
            codes = unpack(rows.words, d, self.bits).reshape(*scale.shape, self.group)
            return restored(codes, scale, rows.low).reshape(*scale.shape[:-1], d).astype(dtype)
        codes = unpack(jnp.swapaxes(rows.words, -1, -2), self.group, self.bits)
        pages = jnp.swapaxes(restored(codes, scale, rows.low), -1, -2)
        return pages.reshape(*scale.shape[:2], -1, scale.shape[-1]).astype(dtype)
