"""Evidence with one entry for each token: written where the token stands, while the prompt is read and while decoding."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float

from kvjax.evidence.need import Block, Need, Shape


class PerToken(Need):
    """A value for every token: [b, n, ...] or [b, h, n, ...] of a prompt, [b, t, ...] of a step.

    A subclass says what it is of a block, `now`, and on which `axis` the tokens lie.
    """

    token_wise: ClassVar[bool] = True
    axis: ClassVar[int] = 1

    def empty(self, shape: Shape) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must define empty(shape)")

    def observe(self, old: Array, block: Block) -> Array:
        return lax.dynamic_update_slice_in_dim(old, self.now(block).astype(old.dtype), block.offset[0], axis=self.axis)

    def now(self, block: Block) -> Array:
        raise NotImplementedError(f"{type(self).__name__} must define now(block)")


@struct.dataclass
class HiddenStates(PerToken):
    """The normed inputs of the layer's attention: n·e values a layer, so ask for it only if you must."""

    reads: ClassVar[tuple[str, ...]] = ("x",)

    @property
    def key(self) -> str:
        return "hidden_states"

    def empty(self, shape: Shape) -> Float[Array, "b n e"]:
        return jnp.zeros((shape.b, shape.n, shape.e), shape.dtype)

    def now(self, block: Block) -> Float[Array, "b t e"]:
        return block.inputs.x


@struct.dataclass
class RawKeys(PerToken):
    """Keys before the rotary embedding: n·d values a KV head."""

    reads: ClassVar[tuple[str, ...]] = ("k_raw",)
    axis: ClassVar[int] = 2

    @property
    def key(self) -> str:
        return "raw_keys"

    def empty(self, shape: Shape) -> Float[Array, "b h n d"]:
        return jnp.zeros((shape.b, shape.h, shape.n, shape.d), shape.dtype)

    def now(self, block: Block) -> Float[Array, "b h t d"]:
        return block.inputs.k_raw


