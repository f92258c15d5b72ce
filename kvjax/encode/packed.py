"""A layer's affine codes and exact rows as one kernel reads them."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import PyTree

from kvjax.codec import Affine, Codec
from kvjax.codec.affine import AffineRows
from kvjax.encode.tail import Tail
from kvjax.kernels.packed_attention import Packed
from kvjax.protocols import Cache
from kvjax.types import Layer


def packed_sides(codecs: tuple[Codec, Codec], cache: Cache, layer: Layer) -> tuple[Packed, Packed] | None:
    """Keys and values of a layer, or None where they are not affine codes with values along channels."""
    keys, values = codecs
    if type(keys) is not Affine or type(values) is not Affine or values.reduce == "token":
        return None
    if keys.reduce == "token" and keys.page == 1:  # a step a number
        return None
    dtype = next((tail.rows.dtype for tail in cache.tails if isinstance(tail, Tail)), jnp.float32)
    rows = zip(codecs, (cache.k, cache.v), cache.tails, strict=True)
    return tuple(_side(codec, pool, tail, cache, layer, dtype) for codec, pool, tail in rows)


def _side(codec: Affine, pool: AffineRows, tail: PyTree, cache: Cache, layer: Layer, dtype: DTypeLike) -> Packed:
    """One of them; without a window all slots are codes."""
    coded, sinks = cache.length[layer], 0
    rows = jnp.zeros((*coded.shape, 0, _channels(codec, pool)), dtype)
    if isinstance(tail, Tail):
        rows, coded, sinks = tail.rows[layer], jnp.minimum(tail.coded[layer], coded), tail.sinks
    return Packed(pool.words, pool.scale, pool.low, rows, coded, bits=codec.bits, page=codec.page, sinks=sinks)


def _channels(codec: Affine, pool: AffineRows) -> int:
    """The head dimension that rows were coded from."""
    return pool.scale.shape[-1] * (codec.group if codec.page == 1 else 1)
