"""Attention of a pass that repeats the prompt as the score (KVzip)."""

from flax import struct

from kvjax.evidence import Evidence, Need
from kvjax.prefill.repeat_context import RepeatedContext
from kvjax.score.heads import GroupMax
from kvjax.stage import Scorer
from kvjax.types import Function, Scores
from kvjax.view import LayerView


@struct.dataclass
class Reconstruction(Scorer):
    """u[j] = heads(max over the queries of a pass that repeats j's chunk of p_j): what reading the prompt out again looks at.

    p is a softmax over the first keys, the chunk's keys and the pass's own, never over the whole prompt; keys outside every chunk
    score 0. The evidence is that of a second pass: `kvjax.second_pass(lm, pre, policy)`.

    Args:
        repeated: how the prompt is repeated.
        heads: reduction to KV heads.

    Source: KVzip, arXiv 2505.23416, section 3.2.
    """

    repeated: RepeatedContext = RepeatedContext()
    heads: Function = GroupMax()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.repeated})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del view
        return self.heads(evidence.of(self.repeated))
