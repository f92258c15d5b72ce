"""Every query reads every slot its head holds."""

from typing import Any

from flax import struct

from kvjax.stage import Encoder, Retriever


@struct.dataclass
class Everything(Retriever):
    """No selection at query time: what eviction left is what attention reads."""

    def attend(self, heads: Any, cache: Any, layer: int, *, positions, window: int | None, encode: Encoder, cap: int):
        return *encode.attention(heads.q, cache, layer, positions=positions, window=window, cap=cap), cache
