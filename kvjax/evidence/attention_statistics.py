"""Attention rows reduced to one state a key."""

from typing import ClassVar

from flax import struct
from jaxtyping import PyTree

from kvjax.evidence.need import Block, Need, Shape
from kvjax.evidence.reduce import Reduction, Sum
from kvjax.types import Layer


@struct.dataclass
class AttentionStatistics(Need):
    """What a `Reduction` of the attention rows says of each key, by query head; while decoding, of the step's rows alone.

    A scorer that wants the history keeps it in its state with `reduction.join`. Costs a second pass over the scores, a tile of rows
    at a time.
    """

    reads: ClassVar[tuple[str, ...]] = ("q",)
    reduction: Reduction = Sum()

    @property
    def key(self) -> str:
        return f"attention_{self.reduction.key}"

    def at(self, layer: Layer) -> "AttentionStatistics":
        return self.replace(reduction=self.reduction.at(layer))

    def serves(self, other: Need) -> bool:
        return isinstance(other, AttentionStatistics) and self.reduction == other.reduction

    def empty(self, shape: Shape) -> PyTree:
        return self.reduction.empty((shape.b, shape.h, shape.g, shape.n))

    def observe(self, old: PyTree, block: Block) -> PyTree:
        return self.reduction.join(old, block.reduced(self.reduction))

    def now(self, block: Block) -> PyTree:
        return block.reduced(self.reduction)
