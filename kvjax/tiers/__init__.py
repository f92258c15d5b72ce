"""Rules of storages in tiers (`kvjax.encode.Tiered`): which tier a slot is in, and what moves while decoding."""

from kvjax.tiers.important_first import ImportantFirst
from kvjax.tiers.origin_first import OriginFirst
from kvjax.tiers.recent_first import RecentFirst
from kvjax.tiers.salient_blocks import SalientBlocks

__all__ = [
    "ImportantFirst", "OriginFirst", "RecentFirst", "SalientBlocks",
]
