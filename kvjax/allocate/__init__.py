"""Allocators: scores → slots for every head, summing exactly to the total."""

from kvjax.allocate.adaptive import Adaptive
from kvjax.allocate.pyramid import Pyramid, PyramidRounded
from kvjax.allocate.uniform import Uniform

__all__ = ["Adaptive", "Pyramid", "PyramidRounded", "Uniform"]
