"""Attention of the last prompt query alone, smoothed along all tokens (HeteroCache)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.softmax import softmax
from kvjax.kernels.window_scores import window_scores
from kvjax.score.heads import GroupMax, over_heads
from kvjax.score.pool import AvgPool
from kvjax.stage import Scorer
from kvjax.types import Function, Scores
from kvjax.view import LayerView


def focus(z: Float32[Array, "b w g n"], valid: Bool[Array, "b n"], *, pool: Function, heads: Function) -> Float32[Array, "b w n"]:
    """s = heads(pool(softmax_n(z))) of the scores z = q k / sqrt(d) of w queries of one KV head, each query by itself.

    Zero where not valid: there z is -inf; `pool` runs over the slots in the order given.
    """
    return jnp.where(valid[:, None], heads(pool(softmax(z))), 0.0)


@struct.dataclass
class LastQuery(Scorer):
    """s = heads(pool(softmax_n(q_last k / sqrt(d)))), pooled over all positions, the last token's own included.

    Args:
        pool: smoothing along the tokens, query head by query head.
        heads: reduction to KV heads.

    Unlike `WindowAttention(window=1)`, nothing is taken out of the pooling: no token is protected.
    Source: HeteroCache, arXiv 2601.13684, section 4.3; the group maximum is the released code's, the paper does not say.
    """

    pool: Function = AvgPool(5)
    heads: Function = GroupMax()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(1)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        a = window_scores(
            evidence.window_queries(1), view.k, pos=view.pos, valid=view.valid, length=evidence.length, window=evidence.window
        )
        return over_heads(self.heads, self.pool(a), view)
