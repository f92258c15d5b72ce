"""kvjax: KV-cache compression research in JAX, on functional pytrees.

In the order of the data path: `prefill` a prompt once, `compress` it with any number of policies, `decode` from each.
"""

from kvjax import (
    allocate,
    codec,
    core,
    encode,
    episodes,
    evidence,
    gates,
    merge,
    methods,
    placement,
    retrieve,
    score,
    select,
    tiers,
    train,
)
from kvjax.by_layer import by_layer
from kvjax.cache import KVCache, ShardedCache, mesh, shard, stack
from kvjax.cache_file import load_cache, save_cache
from kvjax.compress import PromptScores, compress, score_prompt, scores
from kvjax.decode import Decoded, Extended, Greedy, Sample, decode, extend, stream
from kvjax.generate import generate
from kvjax.policy import Policy
from kvjax.prefill import CausalAttention, MInference, Prefilled, StarAttention, load_prefilled, probe, save_prefilled, second_pass
from kvjax.read import prefill
from kvjax.schedule import AfterPrefill, Every, WhenFull

__version__ = "0.1.0"

__all__ = [
    "AfterPrefill", "CausalAttention", "Decoded", "Every", "Extended", "Greedy", "KVCache", "MInference", "Policy", "Prefilled",
    "PromptScores", "Sample", "ShardedCache", "StarAttention", "WhenFull", "allocate", "by_layer", "codec", "compress", "core",
    "decode", "encode", "episodes", "evidence", "extend", "gates", "generate", "load_cache", "load_prefilled", "merge", "mesh",
    "methods", "placement", "prefill", "probe", "retrieve", "save_cache", "save_prefilled", "score", "score_prompt", "scores",
    "second_pass", "select", "shard", "stack", "stream", "tiers", "train",
]  # fmt: skip
