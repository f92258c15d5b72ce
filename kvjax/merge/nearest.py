"""Evicted slots averaged into the kept slot whose key is nearest by cosine."""

from flax import struct
from jaxtyping import PyTree

from kvjax.merge.match import blend, match
from kvjax.merge.weighted import Average
from kvjax.stage import Merger
from kvjax.types import Mask, Number, Scores
from kvjax.view import LayerView


@struct.dataclass
class NearestKey(Merger):
    """v_j ← mean of v_j and the values of the evicted slots whose nearest kept key is k_j, if their cosine exceeds `threshold`.

    Keys stay as they are: the mean of keys rotated at different positions belongs to no position.

    Args:
        threshold: cosine below which an evicted slot is dropped instead (1 drops everything).
    """

    threshold: Number = 0.6

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        del scores
        found = match(view.k, view.valid & ~keep, keep)
        (v,) = blend((view.v,), found, found.u > self.threshold, Average())
        return view.replace(v=v), memory
