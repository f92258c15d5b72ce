"""Attention of the rows that follow a group of tokens, later rows weighing more (PyramidInfer)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.budget import whole_share
from kvjax.evidence.reduce import PerKey, Rows, RowsAt, Sum
from kvjax.ranges import Size, StaticShare
from kvjax.types import Number


def recent_tokens(prompt: Int32[Array, " b"], share: Number) -> Int32[Array, " b"]:
    """1 + int(n share): tokens of the recent window of a prompt of n."""
    return 1 + whole_share(prompt, share)


@struct.dataclass
class LateRows(Sum):
    """Σ_r w_r p / m over the m rows that follow a key's group, w from 1 to `last` in equal steps.

    The m = 1 + int(n share) last rows of the prompt are those of its keys; decoded keys come in groups of `every`, and the m rows
    behind a group are those of its keys.

    Args:
        share: part of the prompt that is recent.   last: weight of the last row.   every: tokens of a group.
    """

    share: StaticShare = struct.field(pytree_node=False, default=0.2)
    last: float = struct.field(pytree_node=False, default=1.2)
    every: Size = struct.field(pytree_node=False, default=16)

    @property
    def key(self) -> str:
        return f"late_rows_{self.share}_{self.last}_{self.every}"

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PerKey:
        del visible
        return jnp.einsum("bhgtn,bhtn->bhgn", p, self._weights(positions, where))

    def _weights(self, positions: Int32[Array, "b t"], where: RowsAt) -> Float32[Array, "b h t n"]:
        """w_r / m of each row and key; 0 for rows that are not of the key's m."""

        def of_row(x):
            return x[:, None, None]

        m, n = recent_tokens(where.prompt, self.share), of_row(where.prompt)
        group = (where.keys - n) // self.every
        first = n + jnp.where(where.keys < n, -of_row(m), (group + 1) * self.every)
        r = positions[:, None, :, None] - first[:, :, None]
        m = m[:, None, None, None]
        w = (1.0 + (self.last - 1.0) * r / jnp.maximum(m - 1, 1)) / m
        return jnp.where((r >= 0) & (r < m), w, 0.0)
