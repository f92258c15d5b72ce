"""Attention received from a token's neighbours on both sides (Compactor)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence, Need
from kvjax.evidence.chunk_attention import ChunkAttention
from kvjax.norms import norm
from kvjax.ranges import Size
from kvjax.score.pool import AvgPool
from kvjax.stage import Scorer
from kvjax.types import Function, Mask, Scores
from kvjax.view import LayerView


def z_score(x: Scores, valid: Mask) -> Scores:
    """(x - mean) / std over all heads and valid slots of a row; the variance is divided by the count less one."""
    count = valid.sum((1, 2), keepdims=True)
    mean = jnp.where(valid, x, 0.0).sum((1, 2), keepdims=True) / count
    off = jnp.where(valid, x - mean, 0.0)
    return off / jnp.sqrt(jnp.maximum((off * off).sum((1, 2), keepdims=True) / jnp.maximum(count - 1, 1), 1e-30))


@struct.dataclass
class NonCausalAttention(Scorer):
    """u = z(pool(mean_g a · ‖v‖)), a what a key receives from all queries of its chunk: see `evidence.chunk_attention.received`.

    Args:
        chunk: tokens of a chunk.   pool: smoothing along the tokens.
        filled: whether a short last chunk is filled up with zeros, as kvpress does.

    Source: Compactor, arXiv 2507.08143, section 3.3.
    """

    chunk: Size = struct.field(pytree_node=False, default=256)
    pool: Function = AvgPool(3)
    filled: bool = struct.field(pytree_node=False, default=False)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ChunkAttention(self.chunk, self.filled)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        a = evidence.of(ChunkAttention(self.chunk, self.filled)).mean(2)
        return z_score(self.pool(jnp.where(view.valid, a * norm(view.v), 0.0)), view.valid)
