"""What a layer's attention over the cache is told beside the queries."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from kvjax.protocols import Rope, Storage
from kvjax.types import Layer, Queries


@dataclass(frozen=True)
class AttendContext:
    """One reading of one layer while decoding; made inside a program, never handed into one.

    Attributes:
        layer: which layer; a loop over layers makes it data.
        positions: position of each query, int32 [b, t].
        window: the layer's sliding window, None for full attention.
        padded_slots: a bound on the slots of a region where something needs one, else 0.
        encode: how the layer's slots are stored.
        rope: the model's rotary embedding, for stages that rotate.
        queries_ahead: the queries [b h g t d] before the rotary embedding that the next layer would make of a normed input [b t e];
            None behind the last layer.
        count: real tokens of each row, the rest is padding or of rows that have ended; None: all are.
    """

    layer: Layer
    positions: Int32[Array, "b t"]
    window: int | None
    padded_slots: int
    encode: Storage
    rope: Rope | None = None
    queries_ahead: Callable[[Float[Array, "b t e"]], Queries] | None = None
    count: Int32[Array, " b"] | None = None

    def replace(self, **changes: object) -> "AttendContext":
        """The same reading with some fields changed."""
        return replace(self, **changes)

    @property
    def real(self) -> Bool[Array, "b t"]:
        """Which queries are of tokens."""
        t = jnp.arange(self.positions.shape[1], dtype=jnp.int32)
        return jnp.broadcast_to(True if self.count is None else t < self.count[:, None], self.positions.shape)
