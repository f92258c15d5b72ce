"""Regions cut into items of about equal size, and the items of a region added up, in XLA (`split` has both as Triton programs)."""

import math

import jax.numpy as jnp

#: Below every score, and finite: exp2(-inf - LOW) is 0 and not NaN.
LOW = -1e30


def plan(start, length, block: int, programs: int):
    """(region, first slot, blocks, slots up to the region's end) of each item, int32; items of region R have no blocks."""
    blocks = -(-length // block)
    each = jnp.maximum(-(-blocks.sum() // programs), 1)
    items = -(-blocks // each)
    ends = jnp.cumsum(items)
    item = jnp.arange(programs + length.size, dtype=jnp.int32)
    region = (ends <= item[:, None]).sum(1, dtype=jnp.int32)  # a search would be a loop of launches
    at = jnp.minimum(region, length.size - 1)
    mine, of = item - (ends - items)[at], jnp.maximum(items[at], 1)
    first, last = mine * blocks[at] // of, (mine + 1) * blocks[at] // of
    real = region < length.size
    held = length[at] - first * block
    return region, jnp.where(real, start[at] + first * block, 0), jnp.where(real, last - first, 0), held


def combine(part, high, total, of):
    """(out [R g d], lse [R g]) from items: [items g d], [items g] twice, and which items are whose, [R items]."""
    real = of.any(0)[:, None]
    most = jnp.where(of[..., None], high, LOW).max(1)
    weights = jnp.where(of[..., None], jnp.exp2(jnp.where(real, high, LOW) - most[:, None]), 0.0)
    part, total = jnp.where(real[..., None], part, 0.0), (weights * jnp.where(real, total, 0.0)).sum(1)
    some = jnp.where(total > 0, total, 1.0)
    out = jnp.einsum("rig,igd->rgd", weights, part, precision="highest") / some[..., None]
    return out, jnp.where(total > 0, (most + jnp.log2(some)) * math.log(2), -jnp.inf)
