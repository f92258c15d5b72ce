"""Attention of the last queries as the score (SnapKV, TOVA)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.window_scores import window_scores
from kvjax.ranges import Size
from kvjax.score.heads import GroupMean, over_heads
from kvjax.score.pool import AvgPool
from kvjax.score.window_rows import before_window
from kvjax.stage import Scorer
from kvjax.types import Function, Mask, Scores
from kvjax.view import LayerView


def pooled(pool: Function, a: Float32[Array, "*x n"], inside: Bool[Array, "*y n"]) -> Float32[Array, "*x n"]:
    """pool(a) of what is inside, zeros elsewhere; a itself outside."""
    return jnp.where(inside, pool(jnp.where(inside, a, 0.0)), a)


@struct.dataclass
class WindowAttention(Scorer):
    """u = pool(heads(mean_w softmax(q k / sqrt(d)))) over the last `window` queries.

    The softmax runs over all keys, the window's own included, before anything is cut off. Pooling runs over the keys before the
    window, as in the release; slots inside the window score their unpooled mean (they are normally protected).

    Args:
        window: observation window, in queries.
        apart: last tokens that pooling leaves out; None for those of the window.
        heads: reduction to KV heads (GroupMean, GroupMax, AllMean).
        pool: smoothing of those along the tokens (AvgPool, MaxPool, NoPool).

    Source: SnapKV, arXiv 2404.14469, section 4; heads are reduced before they are pooled as in Ada-KV's release.
    """

    window: Size = struct.field(pytree_node=False, default=32)
    pool: Function = AvgPool(5)
    heads: Function = GroupMean()
    apart: int | None = struct.field(pytree_node=False, default=None)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        q = evidence.window_queries(self.window)
        mass = window_scores(q, view.k, pos=view.pos, valid=view.valid, length=evidence.length, window=evidence.window)
        mean = mass / jnp.minimum(evidence.length, self.window)[:, None, None, None]
        apart = self.window if self.apart is None else self.apart
        return self.reduced(mean, before_window(view, evidence.length, apart), view)

    def reduced(self, mean: Float32[Array, "b h g n"], before: Mask, view: LayerView) -> Scores:
        """Scores by KV head from the means over queries, smoothed where `before`."""
        return pooled(self.pool, over_heads(self.heads, mean, view), before)


@struct.dataclass
class PooledByQueryHead(WindowAttention):
    """u = heads(pool(mean_w softmax(q k / sqrt(d)))): every query head's scores are smoothed before heads are reduced.

    SnapKV's order, whose release pools and ranks each query head by itself. It matters for pools that are no averages: of averages
    `WindowAttention` makes the same, pooling once a KV head.

    Source: SnapKV, arXiv 2404.14469, section 4; the mean over a group comes after the pooling, as in kvpress.
    """

    def reduced(self, mean: Float32[Array, "b h g n"], before: Mask, view: LayerView) -> Scores:
        return over_heads(self.heads, pooled(self.pool, mean, before[:, :, None]), view)
