"""Scores drawn at random: the control of every comparison."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import Evidence
from kvjax.noise import uniform_at
from kvjax.stage import Scorer
from kvjax.types import Layer, Number, Scores
from kvjax.view import LayerView


@struct.dataclass
class Drawn(Scorer):
    """u ~ U[0, 1), one number for every layer, KV head and position.

    A token's number never changes: what stays of a text is a uniform sample of it at every time, also while decoding (Vitter, 1985,
    reservoir sampling).

    Args:
        seed: an integer; another seed is another draw.   layer: the layer it is for (set by `at`).
    """

    seed: Number = 0
    layer: Number = 0

    def at(self, layer: Layer) -> "Drawn":
        return self.replace(layer=layer)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        heads = jnp.arange(view.pos.shape[1], dtype=jnp.int32)[:, None]
        return uniform_at(self.seed, self.layer, heads, view.pos)
