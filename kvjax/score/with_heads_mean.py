"""Each head's scores, and the mean of its layer's heads on top (KVCompose)."""

from flax import struct

from kvjax.evidence import Evidence
from kvjax.norms import norm
from kvjax.score.around import Around
from kvjax.score.reconstruction import Reconstruction
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class WithHeadsMean(Around):
    """u_hj + mean_h u_hj; after the prompt, where the slots of all heads are the same tokens.

    Args:
        score_of: the scorer.   value_norm: whether u_hj are its scores times ‖v_hj‖₂.

    Source: KVCompose, arXiv 2509.05165, section 3.
    """

    score_of: Scorer = Reconstruction()
    value_norm: bool = struct.field(pytree_node=False, default=False)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        u = self.score_of.score(view, evidence)
        if self.value_norm:
            u = u * norm(view.v)
        return u + u.mean(1, keepdims=True)
