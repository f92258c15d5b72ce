"""A prompt in blocks that see an anchor, themselves, and the end of the block before."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.evidence.reduce import Reduction
from kvjax.kernels.prefill_attention import column_sums, prefill_attention
from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk
from kvjax.prefill.chunk_block import ChunkBlock
from kvjax.protocols import Decoder
from kvjax.types import Keys, size_class


@dataclass(frozen=True)
class AnchoredAttention(PrefillAttention):
    """A chunk sees the first `anchor` tokens, the `overlap` ones before it, and itself: a causal block behind a prefix.

    Chunks of `StarAttention` are run with it; it plans nothing by itself.
    """

    anchor: int
    overlap: int = 0

    def attend(self, inputs, k, v, *, ids, offset, count, window):
        del window
        keys, values = (self._behind(x, offset, inputs.k.shape[2]) for x in (k, v))
        out, lse = prefill_attention(inputs.q, keys, values, offset=jnp.int32(self.anchor + self.overlap))
        block = AnchoredBlock(
            inputs=inputs, ids=ids, out=out, k=keys, lse=lse, offset=jnp.full_like(count, offset), count=count, anchor=self.anchor,
            overlap=self.overlap, n=k.shape[2],
        )  # fmt: skip
        return out, block

    def _behind(self, buffer: Keys, offset: Int32[Array, ""], width: int) -> Float[Array, "b h _ d"]:
        """The anchor's rows of a prompt's buffer, then those before the chunk and its own."""
        rest = jax.lax.dynamic_slice_in_dim(buffer, offset - self.overlap, self.overlap + width, axis=2)
        return jnp.concatenate([buffer[:, :, : self.anchor], rest], 2)


@dataclass(frozen=True)
class StarAttention(PrefillAttention):
    """Tokens see their own block so far, the first `anchor` tokens, and with `overlap` the end of the block before.

    p sees j where j <= p and (j >= ⌊p / size⌋ · size - overlap or j < anchor or p >= n - tail): O(n · (anchor + overlap + size))
    instead of O(n²).

    Args:
        size: tokens of a block.
        anchor: first tokens of the prompt that every block sees, at their own positions; at most `size - overlap`, which it is
            unless it is given.
        tail: last tokens of the prompt (the question) that see everything before them; blocks are those of the rest.
        overlap: last tokens of the block before that a block sees too (EpiCache's calibration).

    A prompt of one block is run as by `CausalAttention`. Keys and values of the first block are reused as they are: positions do
    not change.
    Source: HCAttention, arXiv 2507.19823, appendix B, after Star Attention, arXiv 2411.17116, where the tail is phase 2. The paper
    gives neither size nor anchor.
    """

    size: int
    anchor: int | None = None
    tail: int = 0
    overlap: int = 0

    def __post_init__(self):
        if self.size < 1 or min(self.first, self.overlap, self.tail) < 0 or self.first + self.overlap > self.size:
            raise ValueError(
                "StarAttention wants a size of at least 1 token, an anchor and an overlap of 0 or more and of at most size tokens "
                f"together, and a tail of 0 or more; got {self}"
            )

    @property
    def first(self) -> int:
        """Tokens of the anchor."""
        return self.size - self.overlap if self.anchor is None else self.anchor

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
        attentions = [CausalAttention()] + [AnchoredAttention(self.first, self.overlap)] * (-(-body // self.size) - 1)
        chunks = [PrefillChunk(i * self.size, self.size, body, attention) for i, attention in enumerate(attentions)]
        if self.tail:
            chunks.append(PrefillChunk(body, size_class(self.tail, steps=8), length, CausalAttention()))
        return size_class(max(chunk.offset + chunk.width for chunk in chunks), steps=8), chunks


@struct.dataclass
class AnchoredBlock(ChunkBlock):
    """Rows of a block behind its anchor; k holds the anchor's keys, `overlap` others and the block's own, `n` are the prompt's."""

    lse: Float32[Array, "b h g t"]
    anchor: int = struct.field(pytree_node=False)
    overlap: int = struct.field(pytree_node=False)
    n: int = struct.field(pytree_node=False)

    def column_sums(self) -> Float32[Array, "b h g n"]:
        before = self.anchor + self.overlap
        sums = column_sums(self.inputs.q, self.k, self.lse, offset=jnp.int32(before), length=before + self.count)
        out = jnp.zeros((*sums.shape[:3], self.n), jnp.float32).at[..., : self.anchor].set(sums[..., : self.anchor])
        return jax.lax.dynamic_update_slice_in_dim(out, sums[..., self.anchor :], self.offset[0] - self.overlap, axis=3)

    def near_sums(self, window: int) -> Float32[Array, "b h g n"]:
        raise ValueError(f"mass at distances below {window} is not counted behind an anchor: prefill with CausalAttention()")

    def reduced(self, reduction: Reduction) -> PyTree:
        raise ValueError(
            f"{type(reduction).__name__} of attention rows is not defined where blocks see only their anchor and themselves: "
            "prefill with CausalAttention()"
        )
