"""Every query reads every slot its head holds."""

from flax import struct

from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.stage import Retriever


@struct.dataclass
class Everything(Retriever):
    """No selection at query time: what eviction left is what attention reads."""

    def attend(self, heads, cache, layer: int, *, positions, window: int | None):
        where = (cache.pos, cache.start[layer], cache.length[layer], positions)
        return ragged_attention(heads.q, cache.k, cache.v, *where, window=window)
