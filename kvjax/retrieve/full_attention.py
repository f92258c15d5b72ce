"""Every query reads every slot its head holds."""

from flax import struct

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.protocols import Cache
from kvjax.stage import Retriever


@struct.dataclass
class FullAttention(Retriever):
    """No selection at query time: what eviction left is what attention reads."""

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        return *context.encode.attention(inputs.q, cache, context), cache
