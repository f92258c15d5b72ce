"""Attention received, older rows weighing less and less."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.evidence.reduce import PerKey, Reduction, Rows
from kvjax.ranges import StaticShare


@struct.dataclass
class Faded:
    """Σ_t shrink^(last - t) p over the rows so far, and how many rows there were."""

    total: Float32[Array, "b h g n"]
    rows: Int32[Array, " b"]


@struct.dataclass
class FadingSum(Reduction):
    """Rows weigh shrink^(rows that follow): see `Faded`."""

    shrink: StaticShare = struct.field(pytree_node=False, default=0.98)

    @property
    def key(self) -> str:
        return f"fading_sum_{self.shrink}"

    def empty(self, shape: tuple[int, int, int, int]) -> Faded:
        return Faded(total=jnp.zeros(shape, jnp.float32), rows=jnp.zeros(shape[0], jnp.int32))

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> Faded:
        real = visible.any((1, 2, 4))
        rows = real.sum(-1).astype(jnp.int32)
        age = rows[:, None] - 1 - jnp.arange(p.shape[3], dtype=jnp.int32)
        weight = jnp.where(real, jnp.float32(self.shrink) ** age, 0.0)
        return Faded(total=jnp.einsum("bhgtn,bt->bhgn", p, weight), rows=rows)

    def join(self, before: Faded, after: Faded) -> Faded:
        return Faded(total=faded(before.total, after.rows, self.shrink) + after.total, rows=before.rows + after.rows)


def faded(total: PerKey | Float32[Array, "b h n"], rows: Int32[Array, " b"], shrink: float) -> Array:
    """`total` after so many more rows."""
    return total * (jnp.float32(shrink) ** rows).reshape(-1, *(1,) * (total.ndim - 1))
