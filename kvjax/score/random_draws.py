"""Random numbers as scores: the control that every selector has to beat."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence
from kvjax.noise import uniform_at
from kvjax.stage import Scorer
from kvjax.types import Layer, Number, Scores
from kvjax.view import LayerView


@struct.dataclass
class FreshDraws(Scorer):
    """u ~ U(0, 1), drawn anew at every eviction for each layer, KV head and token.

    Args:
        seed: of the draws, a number that never recompiles.   layer: which layer's draws these are, set by `at`.

    Source: Random Attention, arXiv 2609.03430.
    """

    seed: Number = 0
    layer: Number = 0

    def at(self, layer: Layer) -> "FreshDraws":
        return self.replace(layer=layer)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        head = jnp.arange(view.pos.shape[1])[:, None]
        return uniform_at(self.seed, self.layer, head, view.pos, view.length[:, None, None])
