"""The tokens of a chunk as evidence sees them, whatever attention they were run with."""

from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence.reduce import Reduction, Sum
from kvjax.prefill.rows import reduced_rows
from kvjax.types import Keys


@struct.dataclass
class ChunkBlock:
    """Rows offset .. offset + t of a prompt; `count` of them are real. Which rows of attention they have, a subclass says.

    Attributes:
        inputs, ids: what the layer handed over for the tokens, and the tokens.
        out: attention's output.
        k: the keys that the rows look at.
    """

    inputs: AttentionInputs
    ids: Int32[Array, "b t"]
    out: Float[Array, "b h g t d"]
    k: Keys
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]


@struct.dataclass
class MaskedBlock(ChunkBlock):
    """A chunk whose rows see the keys that a mask of their own says."""

    lse: Float32[Array, "b h g t"]

    def mask(self, rows: Int32[Array, " r"]) -> Bool[Array, "b h g r n"]:
        """Which keys rows of the chunk see, by their index in it."""
        raise NotImplementedError(f"{type(self).__name__} must define mask(rows)")

    def column_sums(self) -> Float32[Array, "b h g n"]:
        return self.reduced(Sum())

    def near_sums(self, window: int) -> Float32[Array, "b h g n"]:
        """Mass that keys receive from these tokens at distances below `window`."""
        return self._reduced(Sum(), window)

    def reduced(self, reduction: Reduction) -> PyTree:
        return self._reduced(reduction, None)

    def _reduced(self, reduction: Reduction, window: int | None) -> PyTree:
        return reduced_rows(
            reduction, self.inputs.q, self.k, self.lse, offset=self.offset[0], count=self.count, window=window, mask=self.mask
        )
