"""k'(A k + b) of many keys: the logarithm of what a Gaussian query expects of them."""

from .api import quadratic_forms

__all__ = ["quadratic_forms"]
