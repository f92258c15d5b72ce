"""How much each column of a prompt's queries weighs, once their heads are turned by a fixed matrix (InfiniGen)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32

from kvjax.evidence.need import Need, Shape, Tokens
from kvjax.types import Layer, Queries, Table, later_table


def turned(x: Float[Array, "b h *rows d"], skew: Float[Array, "h d d"] | None) -> Float32[Array, "b h *rows d"]:
    """x A, head by head; x where A is None."""
    x = x.astype(jnp.float32)
    return x if skew is None else jnp.einsum("bh...d,hdc->bh...c", x, skew.astype(jnp.float32), precision="highest")


@struct.dataclass
class SkewedQueries(Need):
    """Σ_t Σ_g |q_t A|, float32 [b h d]: q rotated queries, A a matrix for each KV head.

    Args:
        skew: float [l, h, d, d]; None leaves queries as they are.
        origin: where it came from; two needs of one origin are one need.
    """

    skew: Table = later_table()
    origin: str = struct.field(pytree_node=False, default="")

    @property
    def key(self) -> str:
        return f"skewed_queries_{self.origin}"

    def at(self, layer: Layer) -> "SkewedQueries":
        return self if self.skew is None else self.replace(skew=jnp.asarray(self.skew)[layer])

    def empty(self, shape: Shape) -> Float32[Array, "b h d"]:
        return jnp.zeros((shape.b, shape.h, shape.d), jnp.float32)

    def observe(self, old: Float32[Array, "b h d"], block: Tokens) -> Float32[Array, "b h d"]:
        q: Queries = block.inputs.q
        real = (jnp.arange(q.shape[3]) < block.count[:, None])[:, None, None, :, None]
        return old + jnp.where(real, jnp.abs(turned(q, self.skew)), 0.0).sum((2, 3))
