"""Attention of the last queries, and how much it varies from one to the next (CAKE)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.ranges import NonNegative, Size
from kvjax.score.heads import GroupMean, over_heads
from kvjax.score.pool import AvgPool
from kvjax.score.window_rows import before_window, mean_and_variance, real_rows, window_rows
from kvjax.stage import Scorer
from kvjax.types import Function, Scores
from kvjax.view import LayerView


@struct.dataclass
class MeanAndVariance(Scorer):
    """u = heads(pool(mean_w p + gamma var_w p)) over the last `window` queries and the keys before them.

    The softmax runs over all keys; the variance is unbiased. Slots inside the window score 0 (they are normally protected).

    Args:
        window: observation window, in queries.   gamma: weight of the variance.
        pool: smoothing along the tokens.   heads: reduction to KV heads.

    Source: CAKE, arXiv 2503.12491, eviction indicator; the group mean comes after the pooling, as in the release.
    """

    window: Size = struct.field(pytree_node=False, default=32)
    gamma: NonNegative = 200.0
    pool: Function = AvgPool(5)
    heads: Function = GroupMean()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        q, length = evidence.window_queries(self.window), evidence.length
        p = window_rows(q, view.k, pos=view.pos, valid=view.valid, length=length, window=evidence.window)
        mean, variance = mean_and_variance(p, real_rows(length, self.window))
        before = before_window(view, length, self.window)
        u = jnp.where(before[:, :, None], mean + self.gamma * variance, 0.0)
        return jnp.where(before, over_heads(self.heads, self.pool(u), view), 0.0)
