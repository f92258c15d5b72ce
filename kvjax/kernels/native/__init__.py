"""C++ kernels for the CPU, as XLA custom calls: what the operations with a `native` module run there."""

from .library import call, has_pairs, missing

__all__ = ["call", "has_pairs", "missing"]
