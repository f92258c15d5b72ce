"""Encoders: how slots are stored."""

from kvjax.encode.plain import Cast, Plain

__all__ = ["Cast", "Plain"]
