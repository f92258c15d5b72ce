"""Attention over listed slots in plain XLA: a loop over the lists, and in it one over the blocks of rows a list names.

A list costs the rows it names, whatever the others name and however long a list may be. Rows are gathered a block at a time: the
gathered keys and values of a block stay in the caches between the gather and the two products.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from kvjax.kernels.ragged_attention.xla import rows_of

#: Below every score, and finite: exp(-inf - LOW) is 0 and not NaN.
LOW = -1e30


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: rows gathered at a time."""

    block: int = 512


@partial(jax.jit, static_argnames=("config",))
def attention(q, k, v, slots, count, bias=None, *, config: Config = Config()):
    """See `api.gather_attention`."""
    b, h, g, _, d = q.shape
    m = slots.shape[-1]
    block = min(config.block, m)
    lists = jnp.pad(slots.reshape(b * h, m), ((0, 0), (0, -m % block)))

    def attend(operands):
        rows, slots, count = operands
        fold = partial(_fold, (k, v, bias), rows, slots, count, block)
        empty = jnp.full(g, LOW), jnp.zeros(g), jnp.zeros((g, d))
        high, total, out = lax.fori_loop(0, -(-count // block), fold, empty)
        some = jnp.where(total > 0, total, 1.0)
        return out / some[:, None], jnp.where(total > 0, high + jnp.log(some), -jnp.inf)

    out, lse = lax.map(attend, (rows_of(q), lists, jnp.clip(count, 0, m).reshape(-1)))
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(q.shape[:-1])


def _fold(pools, rows, slots, count, block: int, i, carry):
    """Fold block i of a list into the running softmax of its rows."""
    k, v, bias = pools
    high, total, out = carry
    there = jnp.arange(block) < count - i * block
    named = lax.dynamic_slice_in_dim(slots, i * block, block)
    keys, values = (jnp.where(there[:, None], x.at[named].get(mode="clip").astype(jnp.float32), 0.0) for x in (k, v))
    scores = lax.dot_general(rows, keys, (((1,), (1,)), ((), ())))
    if bias is not None:
        scores = scores + bias.at[named].get(mode="clip")
    scores = jnp.where(there, scores, -jnp.inf)
    new = jnp.maximum(high, scores.max(axis=1))
    weights, decay = jnp.exp(scores - new[:, None]), jnp.exp(high - new)
    return new, total * decay + weights.sum(axis=1), out * decay[:, None] + lax.dot(weights, values)
