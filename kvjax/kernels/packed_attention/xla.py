"""Packed attention in plain XLA: some slots of every region restored at a time, and a running softmax."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from kvjax.slot_positions import positions_of
from kvjax.types import BLOCK

#: Below every score, and finite: a row that has seen nothing yet gives exp(-inf - LOW) = 0 and not NaN.
LOW = -1e30


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: slots of a block, rounded up to whole pages."""

    block: int = BLOCK


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, pos, start, length, q_pos, bias=None, *, window, config: Config = Config()):
    """See `api.packed_attention`."""
    size = -(-config.block // k.page) * k.page
    rows = q.astype(jnp.float32) / math.sqrt(q.shape[-1])

    def turn(i, carry):
        high, total, out = carry
        first = i * size
        index = first + jnp.arange(size, dtype=jnp.int32)
        slots, held = start[..., None] + index, index < length[..., None]
        keys, values = (jnp.where(held[..., None], side.numbers(start, first, size), 0.0) for side in (k, v))
        z = jnp.einsum("bhgtd,bhnd->bhgtn", rows, keys, precision="highest")
        if bias is not None:
            z = z + jnp.take(bias, slots, mode="clip")[:, :, None, None]
        z = jnp.where(_seen(positions_of(pos, slots, start), held, q_pos, window), z, -jnp.inf)
        top = jnp.maximum(high, z.max(-1))
        weights, share = jnp.exp(z - top[..., None]), jnp.exp(high - top)
        part = jnp.einsum("bhgtn,bhnd->bhgtd", weights, values, precision="highest")
        return top, total * share + weights.sum(-1), out * share[..., None] + part

    empty = jnp.full(q.shape[:-1], LOW), jnp.zeros(q.shape[:-1]), jnp.zeros(q.shape)
    high, total, out = lax.fori_loop(0, -(-length.max() // size), turn, empty)
    some = total > 0
    safe = jnp.where(some, total, 1.0)
    return (out / safe[..., None]).astype(q.dtype), jnp.where(some, high + jnp.log(safe), -jnp.inf)


def _seen(at, held, q_pos, window):
    """Which slots at these positions each query sees [b h 1 t n]; one query without a window sees all that are held."""
    seen = held[:, :, None, None]
    if q_pos.shape[1] == 1 and window is None:
        return seen
    at, now = at[:, :, None, None], q_pos[:, None, None, :, None]
    seen = seen & (at <= now)
    return seen if window is None else seen & (at > now - window)
