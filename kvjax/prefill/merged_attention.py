"""A prompt read as it will be decoded from: every token sees the slots that those before it have been accumulated into (DMC)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.encode.accumulating import WithoutDecisions
from kvjax.evidence import Shape
from kvjax.gates.decision_neurons import merge_weight, merges, query_neuron, running_sums, silent
from kvjax.kernels.softmax import softmax
from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk
from kvjax.prefill.chunk_block import MaskedBlock
from kvjax.prefill.rows import rows_of_a_tile
from kvjax.protocols import Decoder, Rope
from kvjax.types import Keys, Queries, Values


def masked_attention(
    q: Queries, k: Keys, v: Values, sees: Callable[[Int32[Array, " r"]], Bool[Array, "b h r n"]]
) -> tuple[Float[Array, "b h g t d"], Float32[Array, "b h g t"]]:
    """(out, lse) of queries that each see what `sees` says of them by their index; a tile of them at a time."""
    b, h, g, t, d = q.shape
    rows = rows_of_a_tile(t, b * h * g * k.shape[2])
    tiles = -(-t // rows)
    parts = jnp.pad(q, (*((0, 0),) * 3, (0, tiles * rows - t), (0, 0))).reshape(b, h, g, tiles, rows, d)

    def tile(at):
        first, q = at
        z = jnp.einsum("bhgtd,bhnd->bhgtn", q, k, preferred_element_type=jnp.float32) / jnp.sqrt(jnp.float32(d))
        z = jnp.where(sees(first + jnp.arange(rows, dtype=jnp.int32))[:, :, None], z, -jnp.inf)
        p, top = softmax(z), z.max(-1)
        lse = top + jnp.log(jnp.exp(z - top[..., None]).sum(-1))
        return jnp.einsum("bhgtn,bhnd->bhgtd", p, v.astype(jnp.float32)), lse

    out, lse = lax.map(tile, (rows * jnp.arange(tiles, dtype=jnp.int32), jnp.moveaxis(parts, 3, 0)))

    def together(x):
        return jnp.moveaxis(x, 0, 3).reshape(b, h, g, tiles * rows, *x.shape[5:])[:, :, :, :t]

    return together(out).astype(q.dtype), together(lse)


@dataclass(frozen=True)
class MergedAttention(PrefillAttention):
    """Token t sees itself, as what its slot holds by then, and every slot before that the next token has not gone into.

    What is stored of the prompt are its own keys and values; a layer holds those of the slots beside them while it is read.

    Args:
        offset: of the neurons that decide (`kvjax.gates.decision_neurons`).

    Source: DMC, arXiv 2403.09636, section 3.2: the mask of training, decisions taken.
    """

    offset: float = 5.0

    def check(self, decoder: Decoder, chunk: int | None) -> None:
        """Raise ValueError for a model with sliding windows, or a chunk that is no multiple of 64."""
        CausalAttention().check(decoder, chunk)
        if any(window is not None for window in decoder.windows):
            raise ValueError("accumulated slots need full attention: this model has layers with a sliding window")

    def plan(self, length: int, chunk: int | None) -> tuple[int, list[PrefillChunk]]:
        n, chunks = CausalAttention().plan(length, chunk)
        return n, [part._replace(attention=self) for part in chunks]

    def begin(self, shape: Shape, layer: int) -> PyTree:
        """Keys and values by slot's last token, which tokens merged, and the newest slot's sums."""
        del layer
        b, h, n, d = shape.b, shape.h, shape.n, shape.d
        slots = jnp.zeros((b, h, n, d), shape.dtype), jnp.zeros((b, h, n, d), shape.dtype)
        newest = jnp.zeros((b, h, 2 * d), jnp.float32), jnp.zeros((b, h), jnp.float32)
        return *slots, jnp.zeros((b, h, n + 1), bool), newest

    def attend_after(
        self, memory: PyTree, inputs: AttentionInputs, k: Keys, v: Values, *, ids: Int32[Array, "b t"], offset: Int32[Array, ""],
        count: Int32[Array, " b"], window: int | None, rope: Rope | None,
    ) -> tuple[Float[Array, "b h g t d"], "MergedBlock", PyTree]:  # fmt: skip
        del window
        keys, values, merged, newest = memory
        b, _, _, t, d = inputs.q.shape
        positions = jnp.broadcast_to(offset + jnp.arange(t, dtype=jnp.int32), (b, t))
        placed = WithoutDecisions().inputs(inputs, positions, rope)
        merging = merges(inputs.k_raw, self.offset) & (positions > 0)[:, None]
        x = jnp.concatenate([silent(inputs.k_raw), inputs.v], -1).astype(jnp.float32)
        sums, z = running_sums(x, merge_weight(query_neuron(inputs.q_raw), self.offset), merging, newest)
        mean = sums / z[..., None]
        turned = WithoutDecisions().inputs(inputs.replace(k_raw=mean[..., :d]), positions, rope).k

        def put(old, new, at):
            return lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), at, axis=2)

        def own(one, two):
            return jnp.where(merging[..., None], one.astype(jnp.float32), two.astype(jnp.float32))

        keys, values = put(keys, own(turned, placed.k), offset), put(values, own(mean[..., d:], inputs.v), offset)
        merged = put(merged, merging, offset)
        gone = merged[..., 1:]
        out, lse = masked_attention(placed.q, keys, values, partial(sees, gone, offset))
        block = MergedBlock(
            inputs=placed, ids=ids, out=out, k=keys, lse=lse, gone=gone, offset=jnp.full_like(count, offset), count=count
        )
        return out, block, (keys, values, merged, (sums[:, :, -1], z[..., -1]))


def sees(gone: Bool[Array, "b h n"], offset: Int32[Array, ""], rows: Int32[Array, " r"]) -> Bool[Array, "b h r n"]:
    """Which tokens' slots rows of a chunk from `offset` on see: their own, and those before that the next has not gone on from."""
    i, j = (offset + rows)[:, None], jnp.arange(gone.shape[-1], dtype=jnp.int32)
    return (j == i) | ((j < i) & ~gone[:, :, None])


@struct.dataclass
class MergedBlock(MaskedBlock):
    """Tokens that see slots by the last token in each; `gone` says which tokens the next one has gone on from."""

    gone: Bool[Array, "b h n"]

    def mask(self, rows: Int32[Array, " r"]) -> Bool[Array, "b h g r n"]:
        seen = sees(self.gone, self.offset[0], rows)[:, :, None]
        return jnp.broadcast_to(seen, (*self.inputs.q.shape[:3], *seen.shape[3:]))
