"""Attention of the last queries as the score (SnapKV, TOVA)."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.score.heads import GroupMean
from kvjax.score.pool import AvgPool
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Positions, Scores
from kvjax.view import LayerView


def window_attention(
    q: Float[Array, "b h g w d"], k: Keys, *, pos: Positions, valid: Mask, length: Int32[Array, " b"]
) -> Float32[Array, "b h g w n"]:
    """softmax_n(q k / sqrt(d)) of the last w queries over all keys held, causal inside the window.

    Query i stands at position length - w + i. Rows before the first token (prompts shorter than the window) are zero.
    """
    w, d = q.shape[-2:]
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, k, preferred_element_type=jnp.float32) / jnp.sqrt(jnp.float32(d))
    at = length[:, None] - w + jnp.arange(w)
    sees = valid[:, :, None, None, :] & (pos[:, :, None, None, :] <= at[:, None, None, :, None])
    z = jnp.where(sees, z, -jnp.inf)
    a = jnp.exp(z - jnp.max(z, -1, keepdims=True, initial=jnp.finfo(jnp.float32).min))
    return a / jnp.maximum(a.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


@struct.dataclass
class WindowAttention(Scorer):
    """u = heads(pool(mean_w softmax(q k / sqrt(d)))) over the last `window` queries.

    The softmax runs over all keys, the window's own included, before anything is cut off. Pooling runs over the keys before the
    window, as in the release; slots inside the window score their unpooled mean (they are normally protected).

    Args:
        window: observation window, in queries.
        pool: smoothing along the tokens (AvgPool, MaxPool, NoPool).
        heads: reduction to KV heads (GroupMean, GroupMax, AllMean).

    Source: SnapKV, arXiv 2404.14469, section 4; the group mean is this library's choice (KV heads are stored once).
    """

    window: int = struct.field(pytree_node=False, default=32)
    pool: Any = AvgPool(5)
    heads: Any = GroupMean()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def score(self, view: LayerView, seen: Evidence) -> Scores:
        q = seen.window_queries(self.window)
        a = window_attention(q, view.k, pos=view.pos, valid=view.valid, length=seen.length)
        rows = jnp.minimum(seen.length, self.window)[:, None, None, None]
        mean = a.sum(3) / rows
        before = (view.valid & (view.pos < (seen.length - self.window)[:, None, None]))[:, :, None]
        return self.heads(jnp.where(before, self.pool(jnp.where(before, mean, 0.0)), mean))
