"""Rows times two weight matrices, the one product gating the other: the first half of a SwiGLU."""

from .api import gated_linear

__all__ = ["gated_linear"]
