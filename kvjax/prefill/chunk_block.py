"""The tokens of a chunk as evidence sees them, whatever attention they were run with."""

from flax import struct
from jaxtyping import Array, Float, Int32

from kvjax.attention_inputs import AttentionInputs
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
