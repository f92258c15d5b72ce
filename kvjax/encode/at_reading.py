"""Scores of keys that are stored un-rotated: one layer's slots decoded, turned to their places, and multiplied."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float32, PyTree

from kvjax.codec import Codec, LayerRegions
from kvjax.codec.decoded import biased
from kvjax.encode.positions import AtReading, visible
from kvjax.encode.tail import LayerTail
from kvjax.protocols import Rope
from kvjax.slot_positions import positions_of
from kvjax.types import Queries


def scores_at_reading(
    codec: Codec, positions: AtReading, q: Queries, regions: LayerRegions, params: PyTree, rope: Rope | None,
    tail: LayerTail | None = None,
) -> Float32[Array, "b h g t n"]:
    """q·k / sqrt(d) of un-rotated queries and keys at the places `positions` gives them; -inf where a query sees no slot.

    `tail` holds the keys that are exact beside coded ones.
    """
    n = regions.padded_slots
    whole = -(-n // codec.page) * codec.page
    held = regions.held(0, n)
    k = codec.decode(regions.rows(0, whole), q.dtype, params)[:, :, :n]
    k = jnp.where(held[..., None], k if tail is None else tail.beside(k), 0)
    slots = regions.start[..., None] + jnp.arange(n, dtype=jnp.int32)
    pos = positions_of(regions.pos, slots, regions.start)
    at, now = positions.places(pos, held, regions.positions)
    z = positions.product(q, k, at, now, rope) / math.sqrt(q.shape[-1])
    z = jnp.where(visible(at, now, held, regions.window)[:, :, None], z, -jnp.inf)
    return biased(z, regions.bias, regions.start)
