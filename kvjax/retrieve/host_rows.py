"""What the device does not hold of a prompt is attended to on the host, and both parts are joined (NEO, FastDecode)."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.retriever_state import RetrieverState
from kvjax.encode.positions import Absolute
from kvjax.encoder import Encoder
from kvjax.join import Part, joined
from kvjax.placement.host_attention import HostPart, host_attention, to_host
from kvjax.protocols import Cache
from kvjax.retrieve.elsewhere import rows_together
from kvjax.stage import Retriever


@struct.dataclass
class HostRowsState(RetrieverState):
    """Prompts on the host: a part for each layer, of r of the cache's rows.

    Attributes:
        parts: keys and values of all of a prompt's tokens, and which of them the device does not hold.
        row: which rows of the batch they are.   of: rows of the batch.
    """

    parts: tuple[HostPart, ...]
    row: Int32[Array, " r"]
    of: int = struct.field(pytree_node=False)

    @property
    def elsewhere(self) -> PyTree:
        if not self.parts:
            return 0
        held = np.stack([np.asarray(part.held).sum(-1, dtype=np.int32) for part in self.parts])
        found = np.zeros((len(held), self.of, held.shape[2]), np.int32)
        found[:, np.asarray(self.row)] = held
        return found

    @property
    def raw(self) -> PyTree:
        return [(part.k, part.v) for part in self.parts]

    def split(self) -> tuple["HostRowsState", PyTree]:
        return self.replace(parts=()), self.parts

    def joined(self, read: PyTree) -> "HostRowsState":
        return self.replace(parts=read)

    @staticmethod
    def stack(states: list) -> "HostRowsState":
        return _stacked(states)


@struct.dataclass
class HostRows(Retriever):
    """Exact attention: the slots held on the device, and on the host what was cut from the prompt, joined by log-sum-exp.

    A row of which nothing was cut has no copy on the host and costs it nothing. What is decoded stays on the device.

    Needs keys at their places in the text, and slots that are neither merged nor evicted while decoding.
    Raises: ValueError for other positions, a merger, or a policy that evicts while decoding.
    Source: NEO, arXiv 2411.01142; FastDecode, arXiv 2403.11421.
    """

    state: ClassVar[type] = HostRowsState
    reads_cut: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    still: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> PyTree:
        if not isinstance(encode.positions, Absolute):
            raise ValueError(f"HostRows joins keys where the text has them; got {encode.positions!r}: use Absolute() positions")
        cut = [r for r, (row, d) in enumerate(zip(rows, decided, strict=True)) if (np.asarray(d.count) < int(row.length[0])).any()]
        parts = []
        for layer in range(len(rows[0].k)) if cut else ():
            valid = [jnp.arange(rows[r].k[layer].shape[2]) < rows[r].length for r in cut]
            held = [~decided[r].keep[layer] & real for r, real in zip(cut, valid, strict=True)]
            k, v = ([getattr(rows[r], name)[layer] for r in cut] for name in "kv")
            parts.append(to_host(*map(rows_together, (k, v, held))))
        return HostRowsState(parts=tuple(parts), row=jnp.asarray(cut, jnp.int32), of=len(rows))

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(cache.retrieval, HostRowsState):
            raise ValueError("the cache has no part on the host: compress it with this policy")

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        near, state = context.encode.attention(inputs.q, cache, context), cache.retrieval
        if not state.parts:
            return *near, cache
        out, lse = joined([near, _spread(inputs, state, context)])
        return out, lse, cache


def _spread(inputs: AttentionInputs, state: HostRowsState, context: AttendContext) -> Part:
    """The host's part of every row, 0 and -inf where it has none."""
    now = context.positions[state.row]
    out, lse = host_attention(state.parts[context.layer], inputs.q[state.row], now, context.window)
    none = jnp.zeros(inputs.q.shape, jnp.float32), jnp.full(inputs.q.shape[:-1], -jnp.inf, jnp.float32)
    return none[0].at[state.row].set(out), none[1].at[state.row].set(lse)


def _stacked(states: list[HostRowsState]) -> HostRowsState:
    """Several batches as one."""
    first = np.cumsum([0, *(state.of for state in states)])
    with_parts = [state for state in states if state.parts]
    layers = zip(*(state.parts for state in with_parts), strict=True)
    parts = tuple(to_host(*map(rows_together, zip(*of_layer, strict=True))) for of_layer in layers)
    row = jnp.concatenate([state.row + int(at) for state, at in zip(states, first, strict=False)])
    return HostRowsState(parts=parts, row=row, of=int(first[-1]))
