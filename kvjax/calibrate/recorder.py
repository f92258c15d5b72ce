"""A retriever that reads everything and remembers where the last step looked."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.kernels.ragged_attention import probabilities
from kvjax.stage import Encoder, Retriever


@struct.dataclass
class AttentionRows:
    """Where each layer's queries looked in the last step. rows: one [b, h, g, n] a layer, n slots of a region, zero beyond it."""

    rows: tuple[Float32[Array, "b h g n"], ...]

    @staticmethod
    def stack(states: list) -> "AttentionRows":
        return jax.tree.map(lambda *x: jnp.concatenate(x), *states)


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

    def build(self, rows: list, decided: list, cache: Any, encode: Encoder) -> AttentionRows:
        shape = (len(rows), rows[0].k[0].shape[1], self.groups, self.slots)
        return AttentionRows(tuple(jnp.zeros(shape, jnp.float32) for _ in rows[0].k))

    def attend(self, heads: Any, cache: Any, layer: int, *, positions, window: int | None, encode: Encoder, cap: int):
        how = dict(positions=positions, window=window)
        out, lse = encode.attention(heads.q, cache, layer, cap=cap, **how)
        seen = probabilities(encode.scores(heads.q, cache, layer, cap=self.slots, **how), lse)[..., 0, :]
        rows = cache.retrieval.rows
        return out, lse, cache.replace(retrieval=AttentionRows((*rows[:layer], seen, *rows[layer + 1 :])))
