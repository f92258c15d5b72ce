"""Position as the score: the most recent slots win (local windows, attention sinks)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class Recency(Scorer):
    """u = position. With `TopK(sinks=s)` this is StreamingLLM's selection, with `TopK()` a local window."""

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return view.pos.astype(jnp.float32)
