"""kvjax's rounded pyramid on a share that need not be a whole number of slots."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32

from kvjax.allocate.pyramid import pyramid_rounded
from kvjax.stage import Allocator
from kvjax.view import Ranking


@struct.dataclass
class SharePyramid(Allocator):
    """PyramidRounded with b = n share unrounded, as the recorded form has it; a policy's budget would be floored first.

    Args:
        beta, window: those of PyramidRounded. share: part of the prompt kept.
    """

    exact = False

    beta: float = 20.0
    window: int = struct.field(pytree_node=False, default=32)
    share: float = 1.0

    def __call__(self, ranking: Ranking, total: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = ranking.valid.sum(-1).astype(jnp.int32)
        return pyramid_rounded(n[0].max(-1) * jnp.float32(self.share), n, beta=self.beta, window=self.window)
