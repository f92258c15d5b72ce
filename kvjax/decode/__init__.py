"""Decoding over the packed pool: step by step, in one loop, or over known tokens many at a time."""

from kvjax.decode.extend import Extended, extend
from kvjax.decode.loop import Decoded, decode, stream
from kvjax.decode.sample import Greedy, Sample

__all__ = [
    "Decoded", "Extended", "Greedy", "Sample", "decode", "extend", "stream",
]
