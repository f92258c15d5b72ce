"""The last queries of what has been read."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from kvjax.evidence.need import Need, Shape, Tokens
from kvjax.ranges import Size


@struct.dataclass
class WindowQueries(Need):
    """The last `size` rotated queries, oldest first. Costs size·d·g values a KV head; a short prompt leaves zeros in front."""

    carried: ClassVar[bool] = True
    size: Size = struct.field(pytree_node=False, default=64)

    @property
    def key(self) -> str:
        return "window_queries"

    def empty(self, shape: Shape) -> Float[Array, "b h g w d"]:
        return jnp.zeros((shape.b, shape.h, shape.g, self.size, shape.d), shape.dtype)

    def observe(self, old: Float[Array, "b h g w d"], block: Tokens) -> Float[Array, "b h g w d"]:
        both = jnp.concatenate([old, block.inputs.q.astype(old.dtype)], axis=3)
        last = block.count[:, None] + jnp.arange(self.size)
        return jnp.take_along_axis(both, last[:, None, None, :, None], axis=3)

    def serves(self, other: Need) -> bool:
        return isinstance(other, WindowQueries) and self.size >= other.size

    def serve(self, data: Float[Array, "b h g w d"], other: Need) -> Float[Array, "b h g _ d"]:
        return data[..., -other.size :, :]
