"""A chunk of a prompt whose tokens stand somewhere: what attention tells by the order of tokens, told by their positions."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence import Block
from kvjax.evidence.reduce import Reduction, Rows, RowsAt


@struct.dataclass
class Placed(Reduction):
    """Another reduction, of rows whose queries and keys are counted in order and stand at `pos`, in a prompt of `prompt` tokens."""

    reduction: Reduction
    pos: Int32[Array, "b n"]
    prompt: Int32[Array, " b"]

    @property
    def key(self) -> str:
        return self.reduction.key

    def empty(self, shape: tuple[int, int, int, int]) -> PyTree:
        return self.reduction.empty(shape)

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PyTree:
        at = jnp.take_along_axis(self.pos, positions, 1, mode="clip")
        keys = jnp.take_along_axis(self.pos[:, None], where.keys, 2, mode="clip")
        return self.reduction.of_rows_at(p, at, visible, RowsAt(keys=keys, steps=where.steps, prompt=self.prompt))

    def join(self, before: PyTree, after: PyTree) -> PyTree:
        return self.reduction.join(before, after)


@struct.dataclass
class PlacedBlock:
    """A block of a prompt, all of whose tokens stand at `pos`: all of the prompt's, but where some have left."""

    block: Block
    pos: Int32[Array, "b n"]
    prompt: Int32[Array, " b"]

    @property
    def inputs(self) -> AttentionInputs:
        return self.block.inputs

    @property
    def ids(self) -> Int32[Array, "b t"]:
        return self.block.ids

    @property
    def out(self) -> Float[Array, "b h g t d"] | None:
        return self.block.out

    @property
    def offset(self) -> Int32[Array, " b"]:
        return self.block.offset

    @property
    def count(self) -> Int32[Array, " b"]:
        return self.block.count

    def column_sums(self) -> Float32[Array, "b h g n"]:
        return self.block.column_sums()

    def near_sums(self, window: int) -> Float32[Array, "b h g n"]:
        return self.block.near_sums(window)

    def reduced(self, reduction: Reduction) -> PyTree:
        return self.block.reduced(Placed(reduction=reduction, pos=self.pos, prompt=self.prompt))
