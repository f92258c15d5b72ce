"""Attention over keys and values in host memory, computed there: queries cross, outputs and log denominators come back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.kernels.dispatch import compiles_for
from kvjax.placement.on_host import _DEVICE, _HOST, _on_host
from kvjax.types import Queries

#: Below every score, and finite; above every score with the other sign.
_LOW = np.float32(-1e30)
#: Slots of a block; n is a multiple.
SLOTS = 64


class HostPart(NamedTuple):
    """Keys, values and which of them are there, of a multiple of `SLOTS` slots, all in pinned host memory."""

    k: Float[Array, "r h n d"]
    v: Float[Array, "r h n d"]
    held: Bool[Array, "r h n"]


def to_host(k: Float[Array, "r h n d"], v: Float[Array, "r h n d"], held: Bool[Array, "r h n"]) -> HostPart:
    """Arrays moved to pinned host memory, the slots filled up to whole blocks."""
    more = -k.shape[2] % SLOTS
    whole = [jnp.pad(x, ((0, 0), (0, 0), (0, more)) + ((0, 0),) * (x.ndim - 3)) for x in (k, v, held)]
    return HostPart(*jax.device_put(whole, _HOST))


def host_attention(
    part: HostPart, q: Queries, now: Int32[Array, "r t"], window: int | None = None
) -> tuple[Float32[Array, "r h g t d"], Float32[Array, "r h g t"]]:
    """(out, lse) of softmax attention over the slots held; key j is at position j, before every query; 0 and -inf without any.

    Args:
        part: of `to_host`.   q: queries.   now: their positions.   window: of the layer, in tokens.

    Source: NEO, arXiv 2411.01142, the attention of requests whose cache is on the host. Differs: the host computes with XLA.
    """

    def attend(part: HostPart, q: Queries, now: Array) -> tuple[Array, Array]:
        return _attention(part, q, now, window)

    if compiles_for() == "cpu":  # one memory: nothing crosses
        return attend(jax.device_put(part, _DEVICE), q, now)
    return jax.device_put(_on_host(attend)(part, q, now), _DEVICE)


def crossing_nbytes(q: Queries) -> int:
    """Bytes of one `host_attention` of rows [r h g t d] from and to a device with a memory of its own.

    Queries and their positions go to the host, outputs and log denominators come back in float32.
    """
    r, h, g, t, d = q.shape
    return r * t * (h * g * (d * q.dtype.itemsize + d * 4 + 4) + 4)


def _attention(part: HostPart, q: Queries, now: Int32[Array, "r t"], window: int | None) -> tuple[Array, Array]:
    """Block by block, so that no bit of a row depends on how long the others are.

    By arithmetic alone, since a constant is in the device's memory and `where` mixes no memories.
    """
    r, h, g, t, d = q.shape
    blocks, regions, rows = part.k.shape[2] // SLOTS, r * h, g * t
    k, v = (x.reshape(regions * blocks, SLOTS, d) for x in (part.k, part.v))
    z = _products(jnp.broadcast_to(q.reshape(regions, 1, rows, d), (regions, blocks, rows, d)).reshape(-1, rows, d), k)
    seen = _seen(part.held, now, window).astype(jnp.float32)
    seen = jnp.broadcast_to(seen, (r, h, blocks, g, t, SLOTS)).reshape(z.shape)
    z = jnp.minimum(z / np.float32(np.sqrt(d)), (np.float32(1) - np.float32(2) * seen) * _LOW)
    high = z.reshape(regions, blocks, rows, SLOTS).max((1, 3))
    p, total = _weights(z, seen, high)
    out = _products(p, jnp.swapaxes(v.astype(jnp.float32), 1, 2))
    out, total = _sums((out.reshape(regions, blocks, rows, d), total.reshape(regions, blocks, rows)), high * np.float32(0))
    out, lse = lax.map(lambda x: (x[0] / jnp.maximum(x[1], np.float32(1e-30))[:, None], x[2] + jnp.log(x[1])), (out, total, high))
    return out.reshape(q.shape), lse.reshape(q.shape[:-1])


def _seen(held: Bool[Array, "r h n"], now: Int32[Array, "r t"], window: int | None) -> Bool[Array, "r h _ 1 _ s"]:
    """Which slots of each block a query sees."""
    in_blocks = held.reshape(*held.shape[:2], -1, 1, 1, SLOTS)
    if window is None:
        return in_blocks
    at = jnp.cumsum(held | ~held, -1, dtype=jnp.int32).reshape(in_blocks.shape) - np.int32(1)
    return in_blocks & (at > now[:, None, None, None, :, None] - np.int32(window))


def _products(a: Float[Array, "b q c"], b: Float[Array, "b n c"]) -> Float32[Array, "b q n"]:
    """a·b of each block."""
    return jnp.einsum("bqc,bnc->bqn", a, b, preferred_element_type=jnp.float32)


def _weights(
    z: Float32[Array, "b q n"], seen: Float32[Array, "b q n"], high: Float32[Array, "a q"]
) -> tuple[Float32[Array, "b q n"], Float32[Array, "b q"]]:
    """exp(z - high) of the slots seen, and its sums: a block at a time, for XLA's digits of both depend on an array's size."""
    high = jnp.broadcast_to(high[:, None], (len(high), len(z) // len(high), z.shape[1])).reshape(len(z), -1)

    def block(given: tuple) -> tuple[Array, Array]:
        z, seen, high = given
        p = jnp.exp(z - high[:, None]) * seen
        return p, p.sum(-1)

    return lax.map(block, (z, seen, high))


def _sums(parts: tuple[Float32[Array, "a m q d"], Float32[Array, "a m q"]], zero: Float32[Array, "a q"]) -> tuple[Array, Array]:
    """The sums over m, one after the other: a block of nothing at the end changes no bit."""

    def add(carry: tuple, more: tuple) -> tuple[tuple, None]:
        return jax.tree.map(jnp.add, carry, more), None

    first = jnp.broadcast_to(zero[..., None], parts[0][:, 0].shape), zero
    return lax.scan(add, first, jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), parts))[0]
