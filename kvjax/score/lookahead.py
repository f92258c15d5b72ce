"""Attention of learned tokens that stand for the answer to come as the score (LookaheadKV)."""

from flax import struct

from kvjax.evidence import Evidence, Need
from kvjax.prefill.lookahead import LookaheadTokens
from kvjax.score.heads import GroupMean
from kvjax.score.pool import AvgPool
from kvjax.stage import Scorer
from kvjax.types import Function, Scores
from kvjax.view import LayerView


@struct.dataclass
class LookaheadAttention(Scorer):
    """u[j] = pool(heads(mean over the learned tokens of p_j)). The evidence is that of a second pass.

    `kvjax.second_pass(lm, pre, policy)` records it.

    Args:
        tokens: the learned tokens.
        pool: smoothing along the prompt (AvgPool, MaxPool, NoPool).   heads: reduction to KV heads.

    Source: LookaheadKV, arXiv 2603.10899; pooling as SnapKV's is this library's reading.
    """

    tokens: LookaheadTokens
    pool: Function = AvgPool(5)
    heads: Function = GroupMean()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.tokens})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del view
        return self.pool(self.heads(evidence.of(self.tokens) / self.tokens.size))
