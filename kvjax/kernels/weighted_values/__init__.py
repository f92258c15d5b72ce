"""Weighted sums of values over the regions of a pool, for attention whose weights were computed elsewhere."""

from .api import weighted_values

__all__ = ["weighted_values"]
