"""Encoders: how slots are stored."""

from kvjax.encode.callback import ByCallback
from kvjax.encode.codes import Codes
from kvjax.encode.plain import Cast, Plain
from kvjax.encode.values import OnDevice, OnHost

__all__ = ["ByCallback", "Cast", "Codes", "OnDevice", "OnHost", "Plain"]
