"""The seam between a model and the cache: what a layer hands over, and what it wants back."""

from collections.abc import Callable

from flax import struct
from jaxtyping import Array, Float


@struct.dataclass
class AttentionInputs:
    """One layer's attention inputs, grouped by KV head; `attend(inputs) -> (out [b h g t d], aux)` is all a model knows.

    What nobody reads is dropped by the compiler. While decoding, needs of the step alone are given the fields that some need
    `reads`; the others are None then.

    Attributes:
        q: queries after the rotary embedding.
        k: keys after the rotary embedding (rotated once, never again).
        v: values as projected.
        q_raw, k_raw: queries and keys before the rotary embedding (after their norms where a family has them).
        x: the normed input of the attention, for stages that read hidden states.
        residual: the residual stream before the layer.
        w_o: the output projection as heads see it: the layer adds Σ_hgd out · w_o to the residual stream.
        queries_of: the queries [b h g t d] before the rotary embedding that the layer would make of another normed input [b t e];
            to be called inside the layer's `attend` alone. None where a model does not offer it.
    """

    q: Float[Array, "b h g t d"] | None = None
    k: Float[Array, "b h t d"] | None = None
    v: Float[Array, "b h t d"] | None = None
    q_raw: Float[Array, "b h g t d"] | None = None
    k_raw: Float[Array, "b h t d"] | None = None
    x: Float[Array, "b t e"] | None = None
    residual: Float[Array, "b t e"] | None = None
    w_o: Float[Array, "e h g d"] | None = None
    queries_of: Callable[[Array], Array] | None = struct.field(pytree_node=False, default=None)
