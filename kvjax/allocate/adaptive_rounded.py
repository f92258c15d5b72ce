"""Ada-KV's head budgets with the release's safeguard: a mix of counts and an even share, rounded."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32

from kvjax.allocate.adaptive import Adaptive
from kvjax.kernels.select_top import select_top
from kvjax.rank_keys import keys
from kvjax.types import Number
from kvjax.view import Ranking


def rounded_mix(counts: Int32[Array, "l b h"], base: Int32[Array, "l b h"], alpha: Number) -> Int32[Array, "l b h"]:
    """round(c (1 - alpha) + floor(base alpha)), halves to even."""
    sure = jnp.floor(base * alpha * (1 + 1e-6) + 1e-6)
    return jnp.round(counts * (1 - alpha) + sure).astype(jnp.int32)


@struct.dataclass
class AdaptiveRounded(Adaptive):
    """b_lh = p + round(c_lh (1 - alpha) + floor((b - p) alpha)), c_lh the number of head h's slots among the layer's best.

    p protected slots of each head do not compete; c counts the Σ_h (b - p) best of the others. Sums are kept up to rounding.
    For parity with published numbers; `Adaptive` keeps the total.
    Source: the release of Ada-KV, arXiv 2407.11550.
    """

    exact: ClassVar[bool] = False

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        protected = (ranking.protected & ranking.valid).sum(-1).astype(jnp.int32)
        base = jnp.maximum(self.layers(ranking, mean_budget) - protected, 0)
        counts = self._counts(ranking.replace(valid=ranking.valid & ~ranking.protected), base.sum(-1))
        return protected + rounded_mix(counts, base, self.alpha)

    def _counts(self, ranking: Ranking, total: Number) -> Int32[Array, "l b h"]:
        """How many of a layer's `total` best slots fall in each head."""
        rank = keys(ranking)
        chosen = select_top(rank.reshape(*rank.shape[:2], -1), total)
        return chosen.reshape(rank.shape).sum(-1).astype(jnp.int32)
