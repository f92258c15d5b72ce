"""A cache of random keys and values, made on the device: what `compress` leaves of a prompt, but for what the prompt says."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from experiments.bench.planned_cache import kept, planned
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layout import plan_regions
from kvjax.policy import Policy

#: Stages that must be as in a policy of defaults: every head keeps the same number of tokens, as they are, and reads all of them.
_PLAIN = ("allocate", "merge", "encode", "retrieve", "when")
#: Slots drawn at a time, at most: random bits take little beside the pool.
_DRAWN = 1 << 16


def check_plain(name: str, policy: Policy) -> None:
    """Raise ValueError for a policy whose caches hold or depend on more than random numbers can stand in for."""
    plain = Policy()
    for slot in _PLAIN:
        stage = getattr(policy, slot)
        if stage != getattr(plain, slot):
            raise ValueError(
                f"{name} cannot be timed on random numbers: its stage `{slot}`, {type(stage).__name__}, goes by scores, evidence "
                "or tables of a real prompt and model; use `kvjax bench decode` or `kvjax bench retrieval`"
            )


def random_cache(decoder: Any, policy: Policy, context: int, *, dtype: Any, seed: int = 0) -> KVCache:
    """The cache of a prompt of `context` tokens, with random keys and values of tokens at even distances.

    Args:
        decoder: serving `context` positions at least.   policy: that passes `check_plain`.
        dtype: of the model's activations.
    """
    count = kept(decoder, policy, context)
    start, capacity, _ = plan_regions(count)
    shapes = planned(decoder, policy, context, new=0, dtype=dtype)
    regions = dict(start=start, capacity=capacity, length=count, budget=count)
    made = {name: jnp.asarray(x, jnp.int32) for name, x in regions.items()} | {"position": jnp.full(1, context, jnp.int32)}
    keys = dict(zip("kv", jax.random.split(jax.random.key(seed)), strict=True))

    def array(field: str, like: Any) -> jax.Array:
        if field in keys:
            return _normal(keys[field], shape=like.shape, dtype=like.dtype)
        if field == "pos" and like.ndim == 1:
            return _positions(context, count, capacity, like)
        return made[field] if field in made else jnp.zeros(like.shape, like.dtype)

    return jax.tree.unflatten(shapes.structure, [array(field, like) for field, like in shapes.leaves])


@partial(jax.jit, static_argnames=("shape", "dtype"))
def _normal(key: jax.Array, *, shape: tuple[int, int], dtype: Any) -> jax.Array:
    """Normal numbers, some slots at a time."""
    rows = math.gcd(shape[0], _DRAWN)

    def draw(i, pool):
        drawn = jax.random.normal(jax.random.fold_in(key, i), (rows, shape[1]), dtype)
        return lax.dynamic_update_slice_in_dim(pool, drawn, i * rows, 0)

    return lax.fori_loop(0, shape[0] // rows, draw, jnp.zeros(shape, dtype))


def _positions(context: int, count: np.ndarray, capacity: np.ndarray, like: Any) -> jax.Array:
    """Positions of a pool whose regions all hold the same tokens: the last of the context, and others at even distances."""
    held, wide = int(count.flat[0]), int(capacity.flat[0])
    region = np.arange(1, held + 1, dtype=np.int64) * context // held - 1  # beyond 32 bits at 64k tokens
    slots = jnp.tile(jnp.asarray(np.pad(region, (0, wide - held)), like.dtype), count.size)
    return jnp.pad(slots, (0, like.shape[0] - slots.size))
