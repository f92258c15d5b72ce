"""Attention over coded rows: some slots of every region gathered and decoded at a time, never a whole pool."""

import math
from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.codec.layer_regions import LayerRegions
from kvjax.types import BLOCK, Queries


@runtime_checkable
class Decodes(Protocol):
    """What is asked of a codec here (`kvjax.codec.Codec`)."""

    @property
    def page(self) -> int: ...

    def decode(self, rows: PyTree, dtype: DTypeLike, params: PyTree = ()) -> Array: ...


def biased(
    scores: Float32[Array, "b h g t n"], bias: Float32[Array, " s"] | None, start: Int32[Array, "b h"]
) -> Float32[Array, "b h g t n"]:
    """Scores with their slots' biases, if there are any; -inf stays."""
    if bias is None:
        return scores
    slots = start[..., None] + jnp.arange(scores.shape[-1], dtype=jnp.int32)
    found = jnp.take(bias, slots, mode="clip")[:, :, None, None]
    return jnp.where(scores > -jnp.inf, scores + found, -jnp.inf)


def _blocks(page: int, at: LayerRegions) -> tuple[int, Int32[Array, ""], int]:
    """Slots of a block (whole pages), blocks that are in use, and slots of all blocks."""
    size = -(-BLOCK // page) * page
    used = jnp.minimum(at.length.max(), at.padded_slots)
    return size, -(-used // size), -(-at.padded_slots // size) * size


def decoded_scores(codec: Decodes, q: Queries, at: LayerRegions, params: PyTree) -> Float32[Array, "b h g t n"]:
    """q·k^ / sqrt(d) over every region padded to `at.padded_slots`, without biases; -inf where a query sees no slot."""
    size, blocks, width = _blocks(codec.page, at)
    rows = q.astype(jnp.float32) / math.sqrt(q.shape[-1])

    def fill(i, out):
        keys = codec.decode(at.rows(i * size, size), jnp.float32, params)
        scores = jnp.einsum("bhgtd,bhnd->bhgtn", rows, keys, precision="highest")
        scores = jnp.where(at.seen(i * size, size), scores, -jnp.inf)
        return lax.dynamic_update_slice_in_dim(out, scores, i * size, 4)

    return lax.fori_loop(0, blocks, fill, jnp.full((*q.shape[:-1], width), -jnp.inf))[..., : at.padded_slots]


def decoded_sum(
    codec: Decodes, at: LayerRegions, weights: Float32[Array, "b h g t n"], params: PyTree, d: int
) -> Float32[Array, "b h g t d"]:
    """Σ_j weights_j v^_j over the slots of every region that are in use."""
    size, blocks, width = _blocks(codec.page, at)
    weights = jnp.pad(weights, (*((0, 0),) * 4, (0, width - weights.shape[-1])))

    def add(i, out):
        values = codec.decode(at.rows(i * size, size), jnp.float32, params)
        values = jnp.where(at.held(i * size, size)[..., None], values, 0.0)
        part = lax.dynamic_slice_in_dim(weights, i * size, size, 4)
        return out + jnp.einsum("bhgtn,bhnd->bhgtd", part, values, precision="highest")

    return lax.fori_loop(0, blocks, add, jnp.zeros((*weights.shape[:-1], d), jnp.float32))
