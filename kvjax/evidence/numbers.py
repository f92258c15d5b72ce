"""Evidence that is one number for each token and KV head, computed where the layer holds its weights."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from kvjax.evidence.need import Block, Need, Shape
from kvjax.types import Positions, Scores, Values


@struct.dataclass
class Numbers:
    """What was recorded of the tokens from position `first` on: value [b, h, t]."""

    first: Int32[Array, " b"]
    value: Float32[Array, "b h t"]

    def placed(self, old: Scores, pos: Positions) -> Scores:
        """`old`, with the numbers of these tokens in the slots that hold them."""
        at, t = pos - self.first[:, None, None], self.value.shape[2]
        new = jnp.take_along_axis(self.value, jnp.clip(at, 0, t - 1), -1)
        return jnp.where((at >= 0) & (at < t), new, old)


class NumberPerToken(Need):
    """A float32 number for each token: a subclass says what it is of a block, `of_block`."""

    def of_block(self, block: Block) -> Float32[Array, "b h t"]:
        """The numbers of a block's tokens; those behind its real tokens have no meaning."""
        raise NotImplementedError(f"{type(self).__name__} must define of_block(block)")

    def empty(self, shape: Shape) -> Numbers:
        return Numbers(first=jnp.zeros(shape.b, jnp.int32), value=jnp.zeros((shape.b, shape.h, shape.n), jnp.float32))

    def observe(self, old: Numbers, block: Block) -> Numbers:
        value = lax.dynamic_update_slice_in_dim(old.value, self.of_block(block), block.offset[0], axis=2)
        return old.replace(value=value)

    def now(self, block: Block) -> Numbers:
        return Numbers(first=block.offset, value=self.of_block(block))


def projected_value_norm(v: Values, w_o: Float[Array, "e h g d"]) -> Float32[Array, "b h n"]:
    """w_j = mean_g ‖v_j W_o^(g)‖₁, one query head at a time."""

    def of_head(w: Float[Array, "h e d"]) -> Float32[Array, "b h n"]:
        return jnp.abs(jnp.einsum("bhnd,hed->bhne", v, w, preferred_element_type=jnp.float32)).sum(-1)

    return lax.map(of_head, w_o.transpose(2, 1, 0, 3)).mean(0)


@struct.dataclass
class ProjectedValueNorm(NumberPerToken):
    """How far a token's value can move the layer's output: see `projected_value_norm`. One number a slot is stored."""

    reads: ClassVar[tuple[str, ...]] = ("v", "w_o")

    @property
    def key(self) -> str:
        return "projected_value_norm"

    def of_block(self, block: Block) -> Float32[Array, "b h t"]:
        return projected_value_norm(block.inputs.v, block.inputs.w_o)
