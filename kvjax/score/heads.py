"""From query heads to one score a KV head: [b, h, g, n] → [b, h, n].

`AllMean` and `AllMax` are over the heads' i-th slots. While decoding heads may hold different tokens: `over_heads` asks for that.
"""

from functools import reduce

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, Integer

from kvjax.types import Function, Mask, Positions, Scores
from kvjax.view import LayerView


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


def by_position(
    p: Float32[Array, "b r n"], owner: Integer[Array, " r"], *, pos: Positions, valid: Mask
) -> Float32[Array, "b r h n"]:
    """What head r gives the token in each slot of each KV head; nothing if its own KV head no longer holds that token.

    Slots are in position order.
    """
    at = jnp.where(valid, pos, jnp.iinfo(jnp.int32).max)
    search = jnp.vectorize(lambda a, x: jnp.searchsorted(a, x), signature="(n),(m)->(m)")
    found = jnp.minimum(search(at[:, owner][:, :, None], at[:, None]), at.shape[-1] - 1)
    held = jnp.take_along_axis(at[:, owner][:, :, None], found, -1) == at[:, None]
    return jnp.where(held, jnp.take_along_axis(p[:, :, None], found, -1), 0.0)


def of_token(heads: Function, a: Float32[Array, "b h g n"], view: LayerView) -> Scores:
    """AllMean() or AllMax() over the KV heads that hold the token of each slot; slots are in position order."""
    owner = jnp.arange(a.shape[1])

    def everywhere(x: Float32[Array, "b h n"]) -> Float32[Array, "b r h n"]:
        return by_position(x, owner, pos=view.pos, valid=view.valid)

    there = everywhere(jnp.ones_like(a[:, :, 0]))
    if isinstance(heads, AllMax):
        return jnp.where(there > 0, everywhere(a.max(2)), -jnp.inf).max(1)
    return everywhere(a.mean(2)).sum(1) / jnp.maximum(there.sum(1), 1.0)


def over_heads(heads: Function, a: Float32[Array, "b h g n"], view: LayerView) -> Scores:
    """A reduction of scores by slot; over all heads of a layer, of those that hold a slot's token (after a prompt all do)."""
    if view.since is None or not isinstance(heads, AllMean | AllMax):
        return heads(a)
    slots = jnp.where(view.valid, view.pos, -1)
    return lax.cond((slots == slots[:, :1]).all(), lambda: heads(a), lambda: of_token(heads, a, view))
