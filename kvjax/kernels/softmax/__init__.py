"""Softmax along the slots, zero where nothing is seen."""

from .api import softmax

__all__ = ["softmax"]
