"""The cache: one packed pool of ragged regions, and where they stand in it."""

from kvjax.cache.kv_cache import KVCache, SlotState
from kvjax.cache.layout import plan_regions, resize, stack

__all__ = [
    "KVCache", "SlotState", "plan_regions", "resize", "stack",
]
