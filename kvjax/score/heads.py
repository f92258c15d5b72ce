"""From query heads to one score a KV head: [b, h, g, n] → [b, h, n]."""

from functools import reduce

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32


@struct.dataclass
class GroupMean:
    """Mean over the query heads that share a KV head."""

    def __call__(self, a: Float32[Array, "b h g n"]) -> Float32[Array, "b h n"]:
        return a.mean(2)


@struct.dataclass
class GroupMax:
    """Largest over the query heads that share a KV head."""

    def __call__(self, a: Float32[Array, "b h g n"]) -> Float32[Array, "b h n"]:
        return reduce(jnp.maximum, jnp.unstack(a, axis=2))  # on a CPU in vectors, which a reduction of a middle axis is not


@struct.dataclass
class AllMean:
    """Mean over every query head of the layer: all KV heads rank alike."""

    def __call__(self, a: Float32[Array, "b h g n"]) -> Float32[Array, "b h n"]:
        return jnp.broadcast_to(a.mean((1, 2))[:, None], (a.shape[0], a.shape[1], a.shape[3]))


@struct.dataclass
class AllMax:
    """Largest over every query head of the layer: all KV heads rank alike."""

    def __call__(self, a: Float32[Array, "b h g n"]) -> Float32[Array, "b h n"]:
        return jnp.broadcast_to(a.max((1, 2))[:, None], (a.shape[0], a.shape[1], a.shape[3]))
