"""Attention that keys receive from the queries just behind them."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.budget import whole_share
from kvjax.evidence.reduce import PerKey, Rows, RowsAt, Sum, alike
from kvjax.ranges import StaticShare
from kvjax.types import Number


def window_width(length: Int32[Array, " b"], share: Number) -> Int32[Array, " b"]:
    """max(1, int(length · share))."""
    return jnp.maximum(whole_share(length, share), 1)


@struct.dataclass
class NearSum(Sum):
    """Σ_q p over the w queries j <= q < j + w, w = max(1, int(share · (n + further))) of a prompt of n tokens.

    Args:
        share: w as a share of the length.   further: tokens that the length counts beside the prompt's.
    """

    share: StaticShare = struct.field(pytree_node=False, default=0.3)
    further: Number = 0

    @property
    def key(self) -> str:
        return f"near_sum_{self.share}"

    def __eq__(self, other: object) -> bool:
        return alike(self, other)

    def __hash__(self) -> int:
        return hash(self.key)  # numbers may be traced

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PerKey:
        del visible
        w = window_width(where.prompt + self.further, self.share)[:, None, None, None]
        near = positions[:, None, :, None] - where.keys[:, :, None] < w
        return jnp.where(near[:, :, None], p, 0.0).sum(3)
