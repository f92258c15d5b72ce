"""Attention mass received."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.evidence.need import Block, Need, Shape


@struct.dataclass
class ColumnSums(Need):
    """Attention mass each key has received from each query head, summed over queries.

    Costs n values a query head, and on a CPU a few percent of the prompt's attention, whose pass over the scores makes them;
    elsewhere a blockwise second pass (about half of the attention again). While decoding it is the mass of the current block only:
    a scorer that wants the history keeps it in its state.
    """

    reads: ClassVar[tuple[str, ...]] = ("q",)

    @property
    def key(self) -> str:
        return "column_sums"

    def empty(self, shape: Shape) -> Float32[Array, "b h g n"]:
        return jnp.zeros((shape.b, shape.h, shape.g, shape.n), jnp.float32)

    def observe(self, old: Float32[Array, "b h g n"], block: Block) -> Float32[Array, "b h g n"]:
        return old + block.column_sums()

    def now(self, block: Block) -> Float32[Array, "b h g n"]:
        return block.column_sums()
