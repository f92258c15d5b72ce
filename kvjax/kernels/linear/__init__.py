"""Rows times a weight matrix: every projection of a model."""

from .api import linear

__all__ = ["linear"]
