"""kvjax: KV-cache compression research in JAX, on functional pytrees.

In the order of the data path: `prefill` a prompt once, `compress` it with any number of policies, `decode` from each.
"""

from kvjax import allocate, encode, evidence, merge, methods, retrieve, score, select
from kvjax.blocks import Blocks, Exact
from kvjax.cache import KVCache
from kvjax.compress import compress
from kvjax.decode import Decoded, decode, stream
from kvjax.extend import Extended, extend
from kvjax.generate import generate
from kvjax.judge import judge
from kvjax.layout import stack
from kvjax.policy import Policy
from kvjax.prefill import Prefilled, prefill
from kvjax.sample import Greedy, Sample
from kvjax.saved import load_prefilled, save_prefilled
from kvjax.schedule import AfterPrefill, Every, WhenFull

__version__ = "0.1.0"

__all__ = [
    "AfterPrefill", "Blocks", "Decoded", "Every", "Exact", "Extended", "Greedy", "KVCache", "Policy", "Prefilled", "Sample",
    "WhenFull", "allocate", "compress", "decode", "encode", "evidence", "extend", "generate", "judge", "load_prefilled", "merge",
    "methods", "prefill", "retrieve", "save_prefilled", "score", "select", "stack", "stream",
]  # fmt: skip
