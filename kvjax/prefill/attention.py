"""How a prompt is run through the layers: the protocol, and exact attention."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence import Block, ColumnSums, Need, Shape
from kvjax.evidence.reduce import Reduction
from kvjax.kernels.prefill_attention import attention_and_column_sums, column_sums, prefill_attention
from kvjax.prefill.chunk_block import ChunkBlock
from kvjax.prefill.rows import reduced_rows
from kvjax.protocols import Decoder, Rope
from kvjax.types import Keys, Queries, Values, size_class

#: Prompts longer than this are run LONG tokens at a time unless told otherwise: less memory, and no slower.
_WHOLE, _LONG = 2048, 1024


class PrefillChunk(NamedTuple):
    """Tokens offset .. offset + width run through the layers at once; those from `end` on are padding.

    `attention` is what they see: everything before them, or less.
    """

    offset: int
    width: int
    end: int
    attention: "PrefillAttention"


class PrefillAttention:
    """How a prompt attends to itself: hashable and without arrays, since every program of a prefill is compiled for one.

    `plan` cuts a prompt into chunks, and says for each with which attention it is run; `attend` is that attention, `attend_after`
    where chunks leave something to those behind them.
    """

    def check(self, decoder: Decoder, chunk: int | None) -> None:
        """Raise ValueError where it fits neither the model nor the size of a chunk asked for."""

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[PrefillChunk]]:
        """(padded length, chunks) of a prompt of `length` tokens."""
        raise NotImplementedError(f"{type(self).__name__} must define plan(length, chunk)")

    def begin(self, shape: Shape, layer: int) -> PyTree:
        """What it has of a layer before the first chunk, and hands from one chunk to the next: arrays; () for nothing."""
        del shape, layer
        return ()

    def recording(self, needs: Iterable[Need]) -> "PrefillAttention":
        """The attention of chunks of which `needs` are recorded: it may work out what they read while it attends."""
        del needs
        return self

    def attend_after(
        self, memory: PyTree, inputs: AttentionInputs, k: Keys, v: Values, *, ids: Int32[Array, "b t"], offset: Int32[Array, ""],
        count: Int32[Array, " b"], window: int | None, rope: Rope | None,
    ) -> tuple[Float[Array, "b h g t d"], Block, PyTree]:  # fmt: skip
        """(out, block, memory) of a chunk behind those that `memory` is of; `attend` where nothing is kept."""
        del rope
        return *self.attend(inputs, k, v, ids=ids, offset=offset, count=count, window=window), memory

    def attend(
        self, inputs: AttentionInputs, k: Keys, v: Values, *, ids: Int32[Array, "b t"], offset: Int32[Array, ""],
        count: Int32[Array, " b"], window: int | None,
    ) -> tuple[Float[Array, "b h g t d"], Block]:  # fmt: skip
        """(out, the tokens as evidence sees them) of a chunk from position `offset` on, `count` tokens of it real.

        k and v are the prompt's buffers, filled up to and with this chunk; `window` is the layer's sliding window.
        """
        raise NotImplementedError(f"{type(self).__name__} must define attend(inputs, k, v, ...)")


def bucket(length: int, chunk: int | None) -> tuple[int, int]:
    """(padded length, tokens run at a time) of a prompt: the length is one of 8 classes a power of two, in whole chunks."""
    n = size_class(length, steps=8)
    if chunk is None and length <= _WHOLE:
        return n, n
    step = chunk or _LONG
    return -(-n // step) * step, step


@dataclass(frozen=True)
class CausalAttention(PrefillAttention):
    """Every token sees all before it."""

    def check(self, decoder: Decoder, chunk: int | None) -> None:
        """Raise ValueError for a chunk that is no multiple of 64."""
        if chunk is not None and (chunk < 64 or chunk % 64):
            raise ValueError(f"chunk must be a multiple of 64 tokens, at least 64; got {chunk}")

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[PrefillChunk]]:
        """(padded length, runs) of a prompt."""
        n, step = bucket(length, chunk)
        return n, [PrefillChunk(offset, step, length, self) for offset in range(0, length, step)]

    def recording(self, needs: Iterable[Need]) -> "CausalAttention":
        return SummedAttention() if any(isinstance(need, ColumnSums) for need in needs) else self

    def attend(self, inputs, k, v, *, ids, offset, count, window):
        out, lse, sums = self.attended(inputs.q, k, v, offset=offset, count=count, window=window)
        at = jnp.full_like(count, offset)
        block = PromptBlock(inputs=inputs, ids=ids, out=out, k=k, lse=lse, offset=at, count=count, window=window, sums=sums)
        return out, block

    def attended(
        self, q: Queries, k: Keys, v: Values, *, offset: Int32[Array, ""], count: Int32[Array, " b"], window: int | None
    ) -> tuple[Queries, Float32[Array, "b h g t"], Float32[Array, "b h g n"] | None]:
        """(out, lse, sums of columns where they are worked out along) of a chunk's queries."""
        del count
        return *prefill_attention(q, k, v, offset=offset, window=window), None


@dataclass(frozen=True)
class SummedAttention(CausalAttention):
    """The same where sums of columns are recorded: they come of the same pass over the scores. It plans nothing by itself."""

    def attended(self, q, k, v, *, offset, count, window):
        return attention_and_column_sums(q, k, v, offset=offset, length=offset + count, window=window)


@struct.dataclass
class PromptBlock(ChunkBlock):
    """Rows of a prompt that see everything before them.

    Attributes:
        lse, window: of their attention.
        sums: the sums of its columns, where they came with it.
    """

    lse: Float32[Array, "b h g t"]
    window: int | None = struct.field(pytree_node=False)
    sums: Float32[Array, "b h g n"] | None = None

    def column_sums(self) -> Float32[Array, "b h g n"]:
        if self.sums is not None:
            return self.sums
        length = self.offset + self.count
        return column_sums(self.inputs.q, self.k, self.lse, offset=self.offset[0], length=length, window=self.window)

    def near_sums(self, window: int) -> Float32[Array, "b h g n"]:
        """Mass that keys receive from these tokens at distances below `window`."""
        length, near = self.offset + self.count, window if self.window is None else min(window, self.window)
        return column_sums(self.inputs.q, self.k, self.lse, offset=self.offset[0], length=length, window=near)

    def reduced(self, reduction: Reduction) -> PyTree:
        return reduced_rows(
            reduction, self.inputs.q, self.k, self.lse, offset=self.offset[0], count=self.count, window=self.window
        )
