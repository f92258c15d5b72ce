"""Attention received, each row weighted by where its query stands."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.evidence.reduce import PerKey, Rows, Sum


@struct.dataclass
class SumOfPositions(Sum):
    """Σ_t t p: beside Σ_t p it gives the sum under any weights that rise linearly along the prompt."""

    key = "sum_of_positions"

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PerKey:
        del visible
        return jnp.einsum("bhgtn,bt->bhgn", p, positions.astype(jnp.float32), precision="highest")
