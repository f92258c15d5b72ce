"""What a token adds to an attention's output, beside the size of what the attention was given (KVzap's target)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.evidence.need import Block, Need, Shape
from kvjax.evidence.per_token import PerToken
from kvjax.evidence.reduce import Max, PerKey, Rows


@struct.dataclass
class ScaledMax(Max):
    """max_t s_t p of queries from position `first` on, each with a factor s_t of its own.

    Args:
        scale: s, of a block's tokens.   first: position of the first of them.
    """

    key = "scaled_max"
    scale: Float32[Array, "b t"]
    first: Int32[Array, " b"]

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PerKey:
        del visible
        at = jnp.clip(positions - self.first[:, None], 0, self.scale.shape[1] - 1)
        s = jnp.take_along_axis(self.scale, at, axis=1)
        return (p * s[:, None, None, :, None]).max(3)


@struct.dataclass
class RelativeAttention(Need):
    """max_t A[t, j] / ‖x_t‖₂ of each key, by query head; x_t the attention's normed input of query t.

    Source: KVzap, arXiv 2601.07891, section 3, as released (KVzip's "plus" scores).
    """

    reads: ClassVar[tuple[str, ...]] = ("q", "x")

    @property
    def key(self) -> str:
        return "relative_attention"

    def empty(self, shape: Shape) -> Float32[Array, "b h g n"]:
        return jnp.zeros((shape.b, shape.h, shape.g, shape.n), jnp.float32)

    def observe(self, old: Float32[Array, "b h g n"], block: Block) -> Float32[Array, "b h g n"]:
        return jnp.maximum(old, self.now(block))

    def now(self, block: Block) -> Float32[Array, "b h g n"]:
        size = jnp.linalg.norm(block.inputs.x.astype(jnp.float32), axis=-1)
        scale = 1 / jnp.maximum(size, jnp.finfo(jnp.float32).tiny)
        return block.reduced(ScaledMax(scale=scale, first=block.offset))


@struct.dataclass
class ProjectedValueSizes(PerToken):
    """‖v_j W_o^(g)‖₂ of each token, by query head: float32 [b h g n], g·n values a KV head."""

    reads: ClassVar[tuple[str, ...]] = ("v", "w_o")
    axis: ClassVar[int] = 3

    @property
    def key(self) -> str:
        return "projected_value_sizes"

    def empty(self, shape: Shape) -> Float32[Array, "b h g n"]:
        return jnp.zeros((shape.b, shape.h, shape.g, shape.n), jnp.float32)

    def now(self, block: Block) -> Float32[Array, "b h g t"]:
        v, w_o = block.inputs.v, block.inputs.w_o

        def of_head(w: Float[Array, "h e d"]) -> Float32[Array, "b h t"]:
            return jnp.linalg.norm(jnp.einsum("bhtd,hed->bhte", v, w, preferred_element_type=jnp.float32), axis=-1)

        return jnp.moveaxis(lax.map(of_head, w_o.transpose(2, 1, 0, 3)), 0, 2)
