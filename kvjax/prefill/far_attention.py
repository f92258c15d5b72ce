"""A prompt read with a local window and the blocks behind it that its queries match (InfLLM)."""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.encode.positions import turned
from kvjax.evidence import Shape
from kvjax.evidence.reduce import Reduction
from kvjax.far_blocks import FarSizes, best_blocks, part, relevance, representatives
from kvjax.join import joined
from kvjax.kernels.prefill_attention import column_sums, prefill_attention
from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk
from kvjax.protocols import Decoder, Rope
from kvjax.types import Keys, Queries, Values


@dataclass(frozen=True)
class FarBlockAttention(PrefillAttention):
    """Attention = local part ∪ {initial, chosen blocks, remainder}, the far keys all at the distance `sizes.local`.

    Blocks are chosen for `queries` tokens at once, by the mean query: Σ over heads of q̄ · mean of the block's representatives. A
    block's representatives are the keys that received most attention while they were local. The remainder are tokens that left
    the window and fill no block yet.

    Args:
        sizes: tokens of each kind.   queries: tokens that share a choice, a multiple of 64.

    Source: InfLLM, arXiv 2402.04617, sections 3.1 and 3.2. Differs: representatives are a query head's own, as in the release.
    """

    sizes: FarSizes = FarSizes()
    queries: int = 512

    def check(self, decoder: Decoder, chunk: int | None) -> None:
        """Raise ValueError for a chunk beside the blocks of queries, or a model with sliding windows."""
        CausalAttention().check(decoder, self.queries)
        if chunk is not None:
            raise ValueError(f"a choice of blocks is shared by {self.queries} queries, run at once: leave chunk={chunk} out")
        if any(window is not None for window in decoder.windows):
            raise ValueError("far blocks need full attention: this model has layers with a sliding window")

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[PrefillChunk]]:
        n, chunks = CausalAttention().plan(length, None if length <= self.queries else self.queries)
        return n, [part._replace(attention=self) for part in chunks]

    def begin(self, shape: Shape, layer: int) -> Float32[Array, "b h g n"]:
        """What each key has received while it was local."""
        del layer
        return jnp.zeros((shape.b, shape.h, shape.g, shape.n), jnp.float32)

    def attend_after(
        self, memory: Float32[Array, "b h g n"], inputs: AttentionInputs, k: Keys, v: Values, *, ids: Int32[Array, "b t"],
        offset: Int32[Array, ""], count: Int32[Array, " b"], window: int | None, rope: Rope | None,
    ) -> tuple[Float[Array, "b h g t d"], "FarBlock", Float32[Array, "b h g n"]]:  # fmt: skip
        del window
        near = prefill_attention(inputs.q, k, v, offset=offset, window=self.sizes.local)
        far = self._far(memory, inputs, k, v, offset, count, rope)
        out, lse = joined([near, part(far.z, far.seen[:, None, None], far.v)])
        at = jnp.full_like(count, offset)
        block = FarBlock(
            inputs=inputs, ids=ids, out=out, k=k, lse=lse, far=far, offset=at, count=count, local=self.sizes.local
        )
        return out, block, memory + block.near_sums(self.sizes.local)

    def _far(
        self, received: Array, inputs: AttentionInputs, k: Keys, v: Values, offset: Array, count: Array, rope: Rope | None
    ) -> "Far":
        """The far part of a chunk: its slots, their scores and values."""
        s, (b, _, _, t, d), n = self.sizes, inputs.q.shape, k.shape[2]
        q = rope.rotate(inputs.q_raw, *rope.cos_sin(jnp.int32(s.local)))
        left = jnp.broadcast_to(s.left(offset), (b,))
        slots, real = self._slots(received, q, k, left, count, rope)
        seen = real[:, None] & (offset + jnp.arange(t, dtype=jnp.int32)[:, None] - slots[:, None] >= s.local)
        slots = jnp.minimum(slots, n - 1)

        def take(x):
            return jnp.take_along_axis(x, slots[:, None, :, None], 2)

        keys = turned(take(k).astype(jnp.float32), jnp.broadcast_to(-slots[:, None], (b, k.shape[1], slots.shape[1])), rope)
        z = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), keys) / np.sqrt(d)
        return Far(slots=slots, seen=seen, z=z, v=take(v))

    def _slots(self, received, q: Queries, k: Keys, left: Array, count: Array, rope: Rope | None) -> tuple[Array, Array]:
        """Initial tokens, chosen blocks and the remainder, [b, m] each, and which of them are any."""
        s, (b, _, _, t, _) = self.sizes, q.shape
        initial = jnp.broadcast_to(jnp.arange(s.initial, dtype=jnp.int32), (b, s.initial))
        rest = s.initial + left[:, None] * s.block + jnp.arange(s.block + t, dtype=jnp.int32)
        listed, real = [initial, rest], [jnp.ones(initial.shape, bool), jnp.ones(rest.shape, bool)]
        m = s.blocks(k.shape[2] - s.local)
        if m:
            there = (jnp.arange(t) < count[:, None])[:, None, None, :, None]
            mean = jnp.where(there, q.astype(jnp.float32), 0.0).sum(3) / count[:, None, None, None]
            chosen, found = best_blocks(relevance(mean, representatives(received, k, s, m, rope)), left, s.top)
            listed.append(s.slots(chosen))
            real.append(jnp.repeat(found, s.block, axis=1))
        return jnp.concatenate(listed, 1), jnp.concatenate(real, 1)


class Far(NamedTuple):
    """The far part of a chunk: m slots that all heads share, who sees them, scores and values."""

    slots: Int32[Array, "b m"]
    seen: Bool[Array, "b t m"]
    z: Float32[Array, "b h g t m"]
    v: Float[Array, "b h m d"]


@struct.dataclass
class FarBlock:
    """Tokens that see their local window and a far part, as evidence sees them."""

    inputs: AttentionInputs
    ids: Int32[Array, "b t"]
    out: Float[Array, "b h g t d"]
    k: Keys
    lse: Float32[Array, "b h g t"]
    far: Far
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]
    local: int = struct.field(pytree_node=False)

    def near_sums(self, window: int) -> Float32[Array, "b h g n"]:
        """Mass that keys receive from these tokens at distances below `window`, at most the local ones."""
        length, near = self.offset + self.count, min(window, self.local)
        return column_sums(self.inputs.q, self.k, self.lse, offset=self.offset[0], length=length, window=near)

    def column_sums(self) -> Float32[Array, "b h g n"]:
        real = (jnp.arange(self.far.seen.shape[1]) < self.count[:, None])[..., None]
        p = jnp.where((self.far.seen & real)[:, None, None], jnp.exp(self.far.z - self.lse[..., None]), 0.0).sum(3)
        row = jnp.arange(p.shape[0])[:, None]

        def add(near, far):
            return near.at[row, self.far.slots].add(far)

        spread = jnp.moveaxis(add(jnp.moveaxis(self.near_sums(self.local), 3, 1), jnp.moveaxis(p, 3, 1)), 1, 3)
        return spread

    def reduced(self, reduction: Reduction) -> PyTree:
        raise ValueError(
            f"{type(reduction).__name__} of attention rows is not defined where far keys all have one distance: prefill with "
            "CausalAttention()"
        )
