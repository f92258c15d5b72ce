"""Evidence of a second pass: what other queries than the prompt's own make of the prompt."""

from typing import ClassVar

from flax import struct
from jaxtyping import PyTree

from kvjax.evidence.column_sums import ColumnSums
from kvjax.evidence.need import Block, Need, Shape
from kvjax.evidence.reduce import Reduction
from kvjax.protocols import LanguageModel
from kvjax.types import Layer


@struct.dataclass
class Probed(Need):
    """A need of a second pass (`kvjax.probe`), beside what the prompt itself has recorded of the same kind.

    A prefill leaves it out. The fold goes on from probe to probe; another `name` starts one of its own.

    Args:
        need: what is recorded; states of keys are of the prompt's keys.
        name: which probe it is of: probes of different names are different evidence.
    """

    second_pass: ClassVar[bool] = True
    need: Need = ColumnSums()
    name: str = struct.field(pytree_node=False, default="probe")

    @property
    def key(self) -> str:
        return f"{self.name}_{self.need.key}"

    @property
    def advice(self) -> str:
        return "run kvjax.probe(lm, pre, tokens, needs) after the prefill"

    @property
    def reduction(self) -> Reduction | None:
        return self.need.reduction

    def at(self, layer: Layer) -> "Probed":
        return self.replace(need=self.need.at(layer))

    def empty(self, shape: Shape) -> PyTree:
        return self.need.empty(shape)

    def observe(self, old: PyTree, block: Block) -> PyTree:
        return self.need.observe(old, block)

    def now(self, block: Block) -> PyTree:
        raise ValueError("nothing is probed while decoding: give a scorer that needs no probe, when=Every(k, score=...)")

    def serves(self, other: Need) -> bool:
        return isinstance(other, Probed) and self.name == other.name and self.need.serves(other.need)

    def serve(self, data: PyTree, other: "Probed") -> PyTree:
        return self.need.serve(data, other.need)

    def record(self, lm: LanguageModel, pre: object) -> PyTree:
        """The prefilled prompts with this evidence, for needs that know which tokens their probe is made of."""
        del lm, pre
        raise ValueError(f"{self.key} is of a probe whose tokens only you know: {self.advice}")
