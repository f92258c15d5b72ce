"""The seam between a model and the cache: what a layer hands over, and what it wants back."""

from flax import struct
from jaxtyping import Array, Float


@struct.dataclass
class Heads:
    """One layer's attention inputs, grouped by KV head; `attend(heads) -> (out [b h g t d], aux)` is all a model knows.

    Attributes:
        q: queries after the rotary embedding.
        k: keys after the rotary embedding (rotated once, never again).
        v: values as projected.
        q_raw: queries before the rotary embedding (after the query norm where a family has one).
        x: the normed input of the attention, for scorers that read hidden states.
    """

    q: Float[Array, "b h g t d"]
    k: Float[Array, "b h t d"]
    v: Float[Array, "b h t d"]
    q_raw: Float[Array, "b h g t d"]
    x: Float[Array, "b t e"]
