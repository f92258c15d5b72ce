"""A prompt in blocks that see an anchor and themselves."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, PyTree

from kvjax.evidence.reduce import Reduction
from kvjax.kernels.prefill_attention import column_sums, prefill_attention
from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk
from kvjax.prefill.chunk_block import ChunkBlock
from kvjax.protocols import Decoder
from kvjax.types import Keys, size_class


@dataclass(frozen=True)
class AnchoredAttention(PrefillAttention):
    """A chunk sees the first `anchor` tokens and itself, whatever lies between: a causal block behind a prefix.

    Chunks of `StarAttention` are run with it; it plans nothing by itself.
    """

    anchor: int

    def attend(self, inputs, k, v, *, ids, offset, count, window):
        del window
        keys, values = self._behind(k, inputs.k), self._behind(v, inputs.v)
        out, lse = prefill_attention(inputs.q, keys, values, offset=jnp.int32(self.anchor))
        block = AnchoredBlock(
            inputs=inputs, ids=ids, out=out, k=keys, lse=lse, offset=jnp.full_like(count, offset), count=count, anchor=self.anchor,
            n=k.shape[2],
        )  # fmt: skip
        return out, block

    def _behind(self, buffer: Keys, own: Float[Array, "b h t d"]) -> Float[Array, "b h _ d"]:
        """The anchor's rows of a prompt's buffer, then the chunk's own."""
        return jnp.concatenate([buffer[:, :, : self.anchor], own.astype(buffer.dtype)], 2)


@dataclass(frozen=True)
class StarAttention(PrefillAttention):
    """Tokens see their own block so far and the first `anchor` tokens: O(n · (anchor + size)) instead of O(n²).

    p sees j where j <= p and (⌊j / size⌋ = ⌊p / size⌋ or j < anchor or p >= n - tail).

    Args:
        size: tokens of a block.
        anchor: first tokens of the prompt that every block sees, at their own positions; at most `size` (default: `size`).
        tail: last tokens of the prompt (the question) that see everything before them; blocks are those of the rest.

    A prompt of one block is run as by `CausalAttention`. Keys and values of the first block are reused as they are: positions do
    not change.
    Source: HCAttention, arXiv 2507.19823, appendix B, after Star Attention, arXiv 2411.17116, where the tail is phase 2. The paper
    gives neither size nor anchor.
    """

    size: int
    anchor: int | None = None
    tail: int = 0

    def __post_init__(self):
        if self.size < 1 or not 0 <= self.first <= self.size or self.tail < 0:
            raise ValueError(
                "StarAttention wants a size of at least 1 token, an anchor of 0 to size tokens and a tail of 0 or more; "
                f"got size={self.size}, anchor={self.anchor}, tail={self.tail}"
            )

    @property
    def first(self) -> int:
        """Tokens of the anchor."""
        return self.size if self.anchor is None else self.anchor

    def check(self, decoder: Decoder, chunk: int | None) -> None:
        """Raise ValueError for a chunk beside the blocks, or a model with sliding windows."""
        if chunk is not None:
            raise ValueError(f"block-wise prefill runs one block of {self.size} at a time: leave chunk={chunk} out")
        if any(window is not None for window in decoder.windows):
            raise ValueError("block-wise prefill needs full attention: this model has layers with a sliding window")

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[PrefillChunk]]:
        """(padded length, runs) of a prompt."""
        body = length - self.tail
        if body <= self.size:
            return CausalAttention().plan(length, chunk)
        attentions = [CausalAttention()] + [AnchoredAttention(self.first)] * (-(-body // self.size) - 1)
        chunks = [PrefillChunk(i * self.size, self.size, body, attention) for i, attention in enumerate(attentions)]
        if self.tail:
            chunks.append(PrefillChunk(body, size_class(self.tail, steps=8), length, CausalAttention()))
        return size_class(max(chunk.offset + chunk.width for chunk in chunks), steps=8), chunks


@struct.dataclass
class AnchoredBlock(ChunkBlock):
    """Rows of a block behind its anchor; k holds the anchor's keys and the block's own, `n` are the prompt's."""

    lse: Float32[Array, "b h g t"]
    anchor: int = struct.field(pytree_node=False)
    n: int = struct.field(pytree_node=False)

    def column_sums(self) -> Float32[Array, "b h g n"]:
        length = self.anchor + self.count
        sums = column_sums(self.inputs.q, self.k, self.lse, offset=jnp.int32(self.anchor), length=length)
        out = jnp.zeros((*sums.shape[:3], self.n), jnp.float32).at[..., : self.anchor].set(sums[..., : self.anchor])
        return jax.lax.dynamic_update_slice_in_dim(out, sums[..., self.anchor :], self.offset[0], axis=3)

    def near_sums(self, window: int) -> Float32[Array, "b h g n"]:
        raise ValueError(f"mass at distances below {window} is not counted behind an anchor: prefill with CausalAttention()")

    def reduced(self, reduction: Reduction) -> PyTree:
        raise ValueError(
            f"{type(reduction).__name__} of attention rows is not defined where blocks see only their anchor and themselves: "
            "prefill with CausalAttention()"
        )
