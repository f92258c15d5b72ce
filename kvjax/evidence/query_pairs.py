"""Where the queries of a head gather before the rotary embedding, pair by pair of the channels it turns together."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32

from kvjax.evidence.need import Need, Shape, Tokens
from kvjax.norms import root


def pair_norms(x: Float[Array, "... d"]) -> Float32[Array, "... half"]:
    """|x_f + i x_{f + d/2}|."""
    halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
    return root((halves * halves).sum(-2))


@struct.dataclass
class PairSums:
    """Sums over queries: how many, of the queries, of their pairs' norms."""

    count: Float32[Array, " b"]
    total: Float32[Array, "b h g d"]
    norms: Float32[Array, "b h g half"]

    def means(self) -> tuple[Float32[Array, "b h g d"], Float32[Array, "b h g half"]]:
        """(mu, m): the mean query, and the mean norm of each of its pairs."""
        count = jnp.maximum(self.count, 1.0)[:, None, None, None]
        return self.total / count, self.norms / count


@struct.dataclass
class QueryPairs(Need):
    """`PairSums` of the queries before the rotary embedding. Costs 1.5 d numbers a query head."""

    carried: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "query_pairs"

    def empty(self, shape: Shape) -> PairSums:
        heads = (shape.b, shape.h, shape.g)
        total, norms = jnp.zeros((*heads, shape.d), jnp.float32), jnp.zeros((*heads, shape.d // 2), jnp.float32)
        return PairSums(count=jnp.zeros(shape.b, jnp.float32), total=total, norms=norms)

    def observe(self, old: PairSums, block: Tokens) -> PairSums:
        real = (jnp.arange(block.inputs.q.shape[3]) < block.count[:, None])[:, None, None, :, None]
        q = jnp.where(real, block.inputs.q_raw.astype(jnp.float32), 0.0)
        count = old.count + block.count.astype(jnp.float32)
        return PairSums(count=count, total=old.total + q.sum(3), norms=old.norms + pair_norms(q).sum(3))
