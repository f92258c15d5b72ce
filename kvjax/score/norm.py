"""Norms of keys and values as scores."""

from flax import struct

from kvjax.evidence import Evidence
from kvjax.norms import norm
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class KeyNorm(Scorer):
    """u = -||k||: keys of small norm tend to be attended most.

    Source: *A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression*, arXiv 2406.11430, section 3.
    """

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return -norm(view.k)
