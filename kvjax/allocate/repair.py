"""How rounded budgets are brought to their exact total, one unit at a time."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int32, Shaped

Slots = Int32[Array, "b l"]


def _turns(w: Float[Array, " l"], short: Shaped[Array, "b 1"]) -> Slots:
    """Layers in the order they are asked: by decreasing weight to add, by increasing weight to take; equal: the lower layer."""
    return jnp.where(short, jnp.argsort(-w, stable=True), jnp.argsort(w, stable=True)).astype(jnp.int32)


def _room(y, lo, hi, short):
    """Units each layer can still take, or give."""
    return jnp.where(short, hi - y, y - lo)


@struct.dataclass
class RoundRobin:
    """While Σ y != total: every layer with room, by decreasing weight (to take: increasing), gets one unit in turn.

    The form of the released code, which produced the published runs.
    """

    def __call__(self, y: Slots, w: Float[Array, " l"], total: Int32[Array, " b"], lo: Slots, hi: Slots) -> Slots:
        def left(y):
            off = (total - y.sum(-1, dtype=jnp.int32))[:, None]
            return off, (_room(y, lo, hi, off > 0) > 0) & (off != 0)

        def walk(y):
            off, free = left(y)
            turns = _turns(w, off > 0)
            nth = jnp.cumsum(jnp.take_along_axis(free, turns, -1), -1)
            nth = jnp.take_along_axis(nth, jnp.argsort(turns, -1), -1)
            return y + (free & (nth <= jnp.abs(off))) * jnp.sign(off)

        return lax.while_loop(lambda y: left(y)[1].any(), walk, y)


@struct.dataclass
class ArgMax:
    """While Σ y != total: one unit to the layer of largest weight that has room (to take: of smallest), which so fills first.

    The form of the paper's Algorithm 1.
    """

    def __call__(self, y: Slots, w: Float[Array, " l"], total: Int32[Array, " b"], lo: Slots, hi: Slots) -> Slots:
        off = (total - y.sum(-1, dtype=jnp.int32))[:, None]
        turns = _turns(w, off > 0)
        room = jnp.take_along_axis(_room(y, lo, hi, off > 0), turns, -1)
        given = jnp.clip(jnp.abs(off) - (jnp.cumsum(room, -1, dtype=jnp.int32) - room), 0, room)
        return y + jnp.take_along_axis(given, jnp.argsort(turns, -1), -1) * jnp.sign(off)
