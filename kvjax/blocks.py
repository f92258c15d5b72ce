"""How a prompt is run through the layers: with exact attention, or in blocks that see an anchor and themselves."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int32

from kvjax.attend import Heads
from kvjax.kernels.prefill_attention import column_sums, prefill_attention
from kvjax.types import size_class

#: Prompts longer than this are run LONG tokens at a time unless told otherwise: less memory, and no slower.
_WHOLE, _LONG = 2048, 1024


class Run(NamedTuple):
    """Tokens offset .. offset + width run through the layers at once; those from `end` on are padding.

    With an `anchor` they see the first `anchor` tokens and themselves, else everything before them.
    """

    offset: int
    width: int
    end: int
    anchor: int | None = None


def bucket(length: int, chunk: int | None) -> tuple[int, int]:
    """(padded length, tokens run at a time) of a prompt: the length is one of 8 classes a power of two, in whole chunks."""
    n = size_class(length, steps=8)
    if chunk is None and length <= _WHOLE:
        return n, n
    step = chunk or _LONG
    return -(-n // step) * step, step


@dataclass(frozen=True)
class Exact:
    """Every token sees all before it."""

    def check(self, decoder: Any, chunk: int | None) -> None:
        """Raise ValueError for a chunk that is no multiple of 64."""
        if chunk is not None and (chunk < 64 or chunk % 64):
            raise ValueError(f"chunk must be a multiple of 64 tokens, at least 64; got {chunk}")

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[Run]]:
        """(padded length, runs) of a prompt."""
        n, step = bucket(length, chunk)
        return n, [Run(offset, step, length) for offset in range(0, length, step)]


@dataclass(frozen=True)
class Blocks:
    """Tokens see their own block so far and the first `anchor` tokens: O(n · (anchor + size)) instead of O(n²).

    p sees j where j <= p and (⌊j / size⌋ = ⌊p / size⌋ or j < anchor or p >= n - tail).

    Args:
        size: tokens of a block.
        anchor: first tokens of the prompt that every block sees, at their own positions; at most `size` (default: `size`).
        tail: last tokens of the prompt (the question) that see everything before them; blocks are those of the rest.

    A prompt of one block is run as by `Exact`. Keys and values of the first block are reused as they are: positions do not change.
    Source: HCAttention, arXiv 2507.19823, appendix B, after Star Attention, arXiv 2411.17116, where the tail is phase 2. The paper
    gives neither size nor anchor.
    """

    size: int
    anchor: int | None = None
    tail: int = 0

    def __post_init__(self):
        if self.size < 1 or not 0 <= self.first <= self.size or self.tail < 0:
            raise ValueError(
                "Blocks wants a size of at least 1 token, an anchor of 0 to size tokens and a tail of 0 or more; "
                f"got size={self.size}, anchor={self.anchor}, tail={self.tail}"
            )

    @property
    def first(self) -> int:
        """Tokens of the anchor."""
        return self.size if self.anchor is None else self.anchor

    def check(self, decoder: Any, chunk: int | None) -> None:
        """Raise ValueError for a chunk beside the blocks, or a model with sliding windows."""
        if chunk is not None:
            raise ValueError(f"block-wise prefill runs one block of {self.size} at a time: leave chunk={chunk} out")
        if any(window is not None for window in decoder.windows):
            raise ValueError("block-wise prefill needs full attention: this model has layers with a sliding window")

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[Run]]:
        """(padded length, runs) of a prompt."""
        body = length - self.tail
        if body <= self.size:
            return Exact().plan(length, chunk)
        anchors = [None] + [self.first] * (-(-body // self.size) - 1)
        runs = [Run(i * self.size, self.size, body, anchor) for i, anchor in enumerate(anchors)]
        if self.tail:
            runs.append(Run(body, size_class(self.tail, steps=8), length))
        return size_class(max(run.offset + run.width for run in runs), steps=8), runs


@struct.dataclass
class PromptBlock:
    """Rows offset .. offset + t of a prompt as evidence sees them; `count` of them are real."""

    heads: Heads
    k: Any
    lse: Any
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]
    window: int | None = struct.field(pytree_node=False)

    def column_sums(self) -> Float32[Array, "b h g n"]:
        length = self.offset + self.count
        return column_sums(self.heads.q, self.k, self.lse, offset=self.offset[0], length=length, window=self.window)


@struct.dataclass
class AnchoredBlock:
    """A block behind its anchor as evidence sees it; k holds the anchor's keys and the block's own, `n` are the prompt's."""

    heads: Heads
    k: Any
    lse: Any
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]
    anchor: int = struct.field(pytree_node=False)
    n: int = struct.field(pytree_node=False)

    def column_sums(self) -> Float32[Array, "b h g n"]:
        length = self.anchor + self.count
        sums = column_sums(self.heads.q, self.k, self.lse, offset=jnp.int32(self.anchor), length=length)
        out = jnp.zeros((*sums.shape[:3], self.n), jnp.float32).at[..., : self.anchor].set(sums[..., : self.anchor])
        return jax.lax.dynamic_update_slice_in_dim(out, sums[..., self.anchor :], self.offset[0], axis=3)


def prompt_attention(heads: Heads, k, v, offset, count, window: int | None) -> tuple[Float[Array, "b h g t d"], PromptBlock]:
    """Attention over everything before: k and v are the prompt's buffers, filled up to and with these tokens."""
    out, lse = prefill_attention(heads.q, k, v, offset=offset, window=window)
    return out, PromptBlock(heads=heads, k=k, lse=lse, offset=jnp.full_like(count, offset), count=count, window=window)


def anchored_attention(heads: Heads, k, v, offset, count, anchor: int) -> tuple[Float[Array, "b h g t d"], AnchoredBlock]:
    """Attention over the first `anchor` tokens and these: a causal block behind a prefix, whatever lies between."""
    behind = lambda buffer, own: jnp.concatenate([buffer[:, :, :anchor], own.astype(buffer.dtype)], 2)  # noqa: E731
    keys, values = behind(k, heads.k), behind(v, heads.v)
    out, lse = prefill_attention(heads.q, keys, values, offset=jnp.int32(anchor))
    offset = jnp.full_like(count, offset)
    return out, AnchoredBlock(heads=heads, k=keys, lse=lse, offset=offset, count=count, anchor=anchor, n=k.shape[2])
