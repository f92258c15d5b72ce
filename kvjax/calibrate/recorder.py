"""A retriever that reads everything and remembers where the last step looked."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.retriever_state import RetrieverState
from kvjax.encoder import Encoder
from kvjax.kernels.ragged_attention import probabilities
from kvjax.protocols import Cache
from kvjax.stage import Retriever


@struct.dataclass
class AttentionRows(RetrieverState):
    """Where each layer's queries looked in the last step. rows: one [b, h, g, n] a layer, n slots of a region, zero beyond it."""

    rows: tuple[Float32[Array, "b h g n"], ...]


@struct.dataclass
class Recorder(Retriever):
    """Attention over all slots, its rows kept in `cache.retrieval`; for one token at a time.

    Args:
        slots: width of the rows: at least the longest text.
        groups: query heads per KV head.
    """

    slots: int = struct.field(pytree_node=False)
    groups: int = struct.field(pytree_node=False)

    stepwise = True

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> AttentionRows:
        shape = (len(rows), rows[0].k[0].shape[1], self.groups, self.slots)
        return AttentionRows(tuple(jnp.zeros(shape, jnp.float32) for _ in rows[0].k))

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        encode, layer, rows = context.encode, context.layer, cache.retrieval.rows
        out, lse = encode.attention(inputs.q, cache, context)
        scores = encode.scores(inputs.q, cache, context.replace(padded_slots=self.slots))
        mine = probabilities(scores, lse)[..., 0, :]
        return out, lse, cache.replace(retrieval=AttentionRows((*rows[:layer], mine, *rows[layer + 1 :])))
