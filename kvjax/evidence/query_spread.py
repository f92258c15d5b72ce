"""Second moments of the rotated queries of a query head, uncentred."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.evidence.need import Need, Shape, Tokens


@struct.dataclass
class Spread:
    """Σ q and Σ q q' over the queries of each query head."""

    total: Float32[Array, "b h g d"]
    outer: Float32[Array, "b h g d d"]


@struct.dataclass
class QuerySpread(Need):
    """What the direction that a head's queries share is told from: see `Spread`. Costs d² a query head."""

    carried: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "query_spread"

    def empty(self, shape: Shape) -> Spread:
        heads = (shape.b, shape.h, shape.g, shape.d)
        return Spread(total=jnp.zeros(heads, jnp.float32), outer=jnp.zeros((*heads, shape.d), jnp.float32))

    def observe(self, old: Spread, block: Tokens) -> Spread:
        t = jnp.arange(block.inputs.q.shape[3])
        real = (t < block.count[:, None])[:, None, None, :, None]
        q = jnp.where(real, block.inputs.q.astype(jnp.float32), 0.0)
        outer = jnp.einsum("bhgtd,bhgtc->bhgdc", q, q, precision="highest")
        return Spread(total=old.total + q.sum(3), outer=old.outer + outer)
