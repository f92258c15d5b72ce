"""How alike neighbouring keys are, as a second ranking (KVMerger)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array

from kvjax.evidence import Evidence
from kvjax.score.accumulated import AccumulatedAttention
from kvjax.score.around import Around
from kvjax.score.geometry import unit
from kvjax.stage import Scorer
from kvjax.types import Keys, Scores
from kvjax.view import LayerView


def neighbour_cosines(k: Keys) -> Scores:
    """cos(k_j, k_{j+1}), at most 1; of the last key -1. Slots are in position order."""
    x = unit(k)
    cosine = jnp.minimum((x[:, :, :-1] * x[:, :, 1:]).sum(-1), 1.0)
    return jnp.pad(cosine, ((0, 0), (0, 0), (0, 1)), constant_values=-1.0)


@struct.dataclass
class NeighbourLikeness(Around):
    """The scores of another scorer, and beside them the cosine of every key with the next one's.

    Args:
        score_of: the scorer.

    Source: KVMerger, arXiv 2407.08454, section 4.1.
    """

    gives_second: ClassVar[type | None] = Array

    score_of: Scorer = AccumulatedAttention()

    def second(self, view: LayerView, evidence: Evidence, scores: Scores) -> Scores:
        del evidence, scores
        return neighbour_cosines(view.k)
