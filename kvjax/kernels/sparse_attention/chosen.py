"""Which keys a prompt's queries see: columns, diagonals and blocks, and the tiles that this makes."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

#: Queries, and keys, of a tile.
BLOCK = 64


class Chosen(NamedTuple):
    """A query at p sees key j <= p if its column, its distance p - j or its block is chosen. m places for columns, i by j blocks.

    Attributes:
        columns: keys that every query sees, ascending; n where there are fewer than m.
        offsets: whether a distance is chosen.
        blocks: by block of 64 queries of the chunk, and block of 64 keys.
    """

    columns: Int32[Array, "b h g m"]
    offsets: Bool[Array, "b h g n"]
    blocks: Bool[Array, "b h g i j"]


def tiles(
    offsets: Bool[Array, "*heads n"], blocks: Bool[Array, "*heads i j"], offset: Int32[Array, ""]
) -> Bool[Array, "*heads i j"]:
    """Key blocks that a query block takes whole: those with a chosen diagonal in them, or chosen as blocks."""
    i, j = (jnp.arange(size, dtype=jnp.int32) for size in blocks.shape[-2:])
    nearest = offset + i[:, None] * BLOCK - j * BLOCK
    before = jnp.pad(jnp.cumsum(offsets, -1, dtype=jnp.int32), ((0, 0),) * (offsets.ndim - 1) + ((1, 0),))

    def upto(x):
        return jnp.take(before, jnp.clip(x, 0, offsets.shape[-1]), axis=-1)

    touched = upto(nearest + BLOCK) > upto(nearest - BLOCK + 1)
    return (touched | blocks) & (nearest >= 0)
