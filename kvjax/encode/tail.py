"""Exact slots beside coded ones: a region's first few, and its newest in a ring."""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.codec import Codec
from kvjax.codec.layer_regions import page_of
from kvjax.encode.window import Window
from kvjax.kernels.compact import first
from kvjax.protocols import Cache
from kvjax.slot_positions import positions_of
from kvjax.types import Keys, Layer, Queries


@struct.dataclass
class LayerTail:
    """Of one layer: rows [b, h, sinks + ring, d] and coded [b, h], as in `Tail`."""

    rows: Float[Array, "b h r d"]
    coded: Int32[Array, "b h"]
    sinks: int = struct.field(pytree_node=False, default=0)

    @property
    def ring(self) -> int:
        return self.rows.shape[2] - self.sinks

    def exact(self, n: int) -> Bool[Array, "b h n"]:
        """Which of n slots of a region are read from here."""
        i = jnp.arange(n, dtype=jnp.int32)
        return (i < self.sinks) | (i >= self.coded[..., None])

    def slots(self, length: Int32[Array, "b h"]) -> tuple[Int32[Array, "b h r"], Bool[Array, "b h r"]]:
        """Which slot of its region each row holds, and whether it is read from here."""
        ring = jnp.arange(self.ring, dtype=jnp.int32)
        newest = length[..., None] - 1
        i = newest - (newest - ring) % self.ring
        sinks = jnp.broadcast_to(jnp.arange(self.sinks, dtype=jnp.int32), (*length.shape, self.sinks))
        slots = jnp.concatenate([sinks, i], -1)
        in_ring = i >= jnp.maximum(self.coded, self.sinks)[..., None]
        return slots, jnp.concatenate([sinks < length[..., None], in_ring], -1)

    def beside(self, k: Keys) -> Keys:
        """The first n slots of every region: decoded ones [b, h, n, d], but what is read from here."""
        n = k.shape[2]
        rows = self.rows[:, :, row_of(jnp.arange(n, dtype=jnp.int32), self.sinks, self.ring)]
        return jnp.where(self.exact(n)[..., None], rows.astype(k.dtype), k)

    def scores(self, q: Queries, n: int) -> Float32[Array, "b h g t n"]:
        """q·k / sqrt(d) of the rows, where their slots stand among n; anything elsewhere."""
        rows = q.astype(jnp.float32) / math.sqrt(q.shape[-1])
        z = jnp.einsum("bhgtd,bhrd->bhgtr", rows, self.rows.astype(jnp.float32), precision="highest")
        return z[..., row_of(jnp.arange(n, dtype=jnp.int32), self.sinks, self.ring)]

    def weighted_sum(self, weights: Float32[Array, "b h g t n"], length: Int32[Array, "b h"]) -> Float32[Array, "b h g t d"]:
        """Σ_j weights_j v_j over the slots that are read from here."""
        slots, mine = self.slots(length)
        at = jnp.clip(slots, 0, weights.shape[-1] - 1)[:, :, None, None]
        sent = jnp.where(mine[:, :, None, None], jnp.take_along_axis(weights, at, -1), 0.0)
        rows = jnp.where(mine[..., None], self.rows.astype(jnp.float32), 0.0)
        return jnp.einsum("bhgtr,bhrd->bhgtd", sent, rows, precision="highest")


def row_of(slot: Int32[Array, "*a"], sinks: int, ring: int) -> Int32[Array, "*a"]:
    """The row that holds a slot of a region, if any does."""
    return jnp.where(slot < sinks, slot, sinks + slot % ring)


@struct.dataclass
class Tail:
    """Exact keys, or values, of all layers.

    A region's first `sinks` slots are rows of their own; slot j behind them is row sinks + j mod ring as long as it is one of the
    newest. Slots at or above `coded` are exact, those below it are coded, but for the sinks.

    Attributes:
        rows: [L, B, H, sinks + ring, d] in the model's dtype.
        coded: int32 [L, B, H].
        sinks: how many.
    """

    rows: Float[Array, "l b h r d"]
    coded: Int32[Array, "l b h"]
    sinks: int = struct.field(pytree_node=False, default=0)

    def of(self, layer: Layer) -> LayerTail:
        return LayerTail(self.rows[layer], self.coded[layer], self.sinks)

    def put(self, x: Keys, layer: Layer, slot: Int32[Array, "b h"], count: Int32[Array, " b"]) -> "Tail":
        """With a layer's newest [b, h, 1, d] at `slot` of its region, in the rows that have one."""
        ring = self.rows.shape[3] - self.sinks
        row = jnp.where(count[:, None] > 0, row_of(slot, self.sinks, ring), self.rows.shape[3])
        b, h = jnp.indices(slot.shape)
        return self.replace(rows=self.rows.at[layer, b, h, row].set(x[:, :, 0].astype(self.rows.dtype), mode="drop"))


def empty_tail(window: Window, sinks: int, shape: tuple[int, int, int], d: int, dtype: DTypeLike) -> Tail:
    """The tail of regions [L, B, H] that hold nothing."""
    return Tail(jnp.zeros((*shape, sinks + window.rows, d), dtype), jnp.zeros(shape, jnp.int32), sinks)


def put_rows(pool: PyTree, rows: PyTree, start: Int32[Array, "b h"], count: Int32[Array, "b h"], slots: int) -> PyTree:
    """A pool of `slots` slots with rows, leaves [b, h, n / page, ...], from `start` on: those of the first `count` slots."""

    def put(leaf: Array, new: Array) -> Array:
        page = page_of(leaf, slots)
        i = jnp.arange(new.shape[2], dtype=jnp.int32)
        where = jnp.where(i * page < count[..., None], (start // page)[..., None] + i, leaf.shape[0])
        return leaf.at[where].set(new.astype(leaf.dtype), mode="drop")

    return jax.tree.map(put, pool, rows)


def filled(
    x: Keys, order: Int32[Array, "b h m"], count: Int32[Array, "b h"], window: Window, sinks: int
) -> Float[Array, "b h r d"]:
    """Rows [b, h, sinks + ring, d] of a prompt's kept slots: `order` lists the `count` that stay of x [b, h, n, d]."""
    empty = jnp.zeros((*x.shape[:2], sinks + window.rows, x.shape[3]), x.dtype)
    slots, _ = LayerTail(empty, count, sinks).slots(count)
    there = (slots >= 0) & (slots < count[..., None])
    source = jnp.take_along_axis(order, jnp.clip(slots, 0, order.shape[-1] - 1), -1)
    return jnp.where(there[..., None], jnp.take_along_axis(x, source[..., None], 2), empty)


def flush(codec: Codec, window: Window, pool: PyTree, tail: Tail, fitted: PyTree, cache: Cache) -> tuple[PyTree, Tail]:
    """What the window codes after a step, in its pool, layer by layer; layers where nothing is due cost nothing."""
    coded = window.coded(cache.length)
    due = coded > tail.coded
    layers, many = first(due.any((1, 2))[None, None])[0, 0], due.any((1, 2)).sum()
    ring = tail.rows.shape[3] - tail.sinks

    def one(i, pool):
        layer = layers[i]
        j = tail.coded[layer][..., None] + jnp.arange(window.block, dtype=jnp.int32)
        x = jnp.take_along_axis(tail.rows[layer], row_of(j, tail.sinks, ring)[..., None], 2)
        where = cache.start[layer] + tail.coded[layer]
        pos = positions_of(cache.pos, cache.start[layer][..., None] + j, cache.start[layer])
        rows = codec.at(layer).encode(x, pos, jax.tree.map(lambda x: x[layer], fitted))
        return put_rows(pool, rows, where, jnp.where(due[layer], window.block, 0), cache.slots)

    pool = lax.fori_loop(0, many, one, pool)
    return pool, tail.replace(coded=coded)
