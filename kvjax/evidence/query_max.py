"""How large each channel of a prompt's queries becomes."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.evidence.need import Need, Shape, Tokens


@struct.dataclass
class QueryMax(Need):
    """max_t |q_tc| of the rotated queries, over the query heads of a KV head. Costs d numbers a KV head."""

    carried: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "query_max"

    def empty(self, shape: Shape) -> Float32[Array, "b h d"]:
        return jnp.zeros((shape.b, shape.h, shape.d), jnp.float32)

    def observe(self, old: Float32[Array, "b h d"], block: Tokens) -> Float32[Array, "b h d"]:
        t = jnp.arange(block.inputs.q.shape[3])
        real = (t < block.count[:, None])[:, None, None, :, None]
        q = jnp.where(real, jnp.abs(block.inputs.q.astype(jnp.float32)), 0.0)
        return jnp.maximum(old, q.max((2, 3)))
