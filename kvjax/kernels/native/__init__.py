"""C++ kernels for the CPU, as XLA custom calls: what the operations with a `native` module run there."""

from .library import call, missing

__all__ = ["call", "missing"]
