"""What the attention of a step leaves to scorers, until they read it after the last layer."""

from typing import Any

from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax import evidence as ev
from kvjax.attend import Heads


@struct.dataclass
class StepTokens:
    """The tokens of a step as evidence that is carried on sees them."""

    heads: Heads
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]


@struct.dataclass
class Seen:
    """Of one layer.

    Attributes:
        evidence: what is carried on, the step's tokens included.
        heads: fields of `Heads` that needs of the step alone read, by name.
        lse: log of the softmax denominators, where there are such needs.
    """

    evidence: ev.Evidence
    heads: dict[str, Any]
    lse: Float32[Array, "b h g t"] | None

    @classmethod
    def of(cls, old: ev.Evidence, heads: Heads, lse: Any, *, needs: frozenset, offset: Any, count: Any) -> "Seen":
        """A layer's after a step of `count` tokens a row from `offset` on; `needs`: the scorer's."""
        read = {need.reads: getattr(heads, need.reads) for need in needs if not need.carried}
        evidence = ev.observe(old, StepTokens(heads=heads, offset=offset, count=count))
        return cls(evidence=evidence, heads=read, lse=lse if read else None)
