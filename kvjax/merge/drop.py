"""Evicted slots are dropped."""

from typing import ClassVar

from flax import struct
from jaxtyping import PyTree

from kvjax.stage import Merger
from kvjax.types import Mask, Scores
from kvjax.view import LayerView


@struct.dataclass
class Drop(Merger):
    """Kept slots stay as they are; the rest is gone."""

    rewrites: ClassVar[bool] = False

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        del keep, scores
        return view, memory
