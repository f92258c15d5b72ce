"""Recent tokens lifted above the best score there is, where tokens are ranked in company (ChunkKV)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence
from kvjax.ranges import Count
from kvjax.score.around import Around
from kvjax.score.window import WindowAttention
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class RecentOnTop(Around):
    """The scores of another scorer; the last `recent` tokens score 1 more than the best token before them in any head.

    Attention scores are at most 1: a chunk that holds a recent token goes before all that hold none, however few it holds.

    Args:
        score_of: the scorer.   recent: tokens lifted.
    """

    score_of: Scorer = WindowAttention()
    recent: Count = 32

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        u = self.score_of.score(view, evidence)
        older = view.pos < (view.length - self.recent)[:, None, None]
        best = jnp.where(view.valid & older, u, -jnp.inf).max((1, 2), keepdims=True)
        return jnp.where(older, u, jnp.where(best > -jnp.inf, best, 0.0) + 1)
