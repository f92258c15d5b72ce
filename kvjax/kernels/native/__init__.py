"""C++ kernels for the CPU, as XLA custom calls: what ragged_attention, gather_attention and codebook_scores run there."""

from .library import call, missing

__all__ = ["call", "missing"]
