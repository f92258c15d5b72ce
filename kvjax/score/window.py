"""Attention of the last queries as the score (SnapKV, TOVA)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.window_scores import window_scores
from kvjax.ranges import Size
from kvjax.score.heads import GroupMean, over_heads
from kvjax.score.pool import AvgPool
from kvjax.score.window_rows import before_window
from kvjax.stage import Scorer
from kvjax.types import Function, Scores
from kvjax.view import LayerView


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
        before = before_window(view, evidence.length, apart)
        u = over_heads(self.heads, mean, view)
        return jnp.where(before, self.pool(jnp.where(before, u, 0.0)), u)
