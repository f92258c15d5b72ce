"""Encoders: how slots are stored."""

from kvjax.encode.codes import Codes
from kvjax.encode.plain import Cast, Plain
from kvjax.encode.values import OnDevice, OnHost

__all__ = ["Cast", "Codes", "OnDevice", "OnHost", "Plain"]
