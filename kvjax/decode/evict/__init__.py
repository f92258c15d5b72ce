"""Eviction while decoding: score what is held, choose what stays, fill the holes. Nothing is moved that need not move.

After the last layer, many layers at once: no layer reads what another holds, and what is done once is compiled once.
"""

from kvjax.decode.evict.passes import evict
from kvjax.decode.evict.reader import Reader
from kvjax.decode.evict.layer_step import LayerStep
from kvjax.decode.evict.tiers import settle

__all__ = ["Reader", "LayerStep", "evict", "settle"]
