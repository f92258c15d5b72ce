"""The cache: one packed pool of ragged regions, where they stand in it, and one cache over several devices."""

from kvjax.cache.kv_cache import KVCache, SlotState
from kvjax.cache.layout import plan_regions, resize
from kvjax.cache.mesh import mesh
from kvjax.cache.shard import shard
from kvjax.cache.sharded import ShardedCache
from kvjax.cache.stacking import stack

__all__ = [
    "KVCache", "ShardedCache", "SlotState", "mesh", "plan_regions", "resize", "shard", "stack",
]  # fmt: skip
