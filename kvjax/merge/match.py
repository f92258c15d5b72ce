"""Evicted slots matched to kept ones by cosine, and blended into them all at once.

Work follows the number of evicted slots: they come first in a list that is walked a block at a time. A prompt takes wide blocks,
a decode step, which evicts one slot a head, the smallest one. The loops end where the lists do, so gradients flow forward only.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.kernels.compact import first
from kvjax.score.geometry import length, unit
from kvjax.types import Keys, Mask, Number

#: Evicted slots handled at a time: memory stays linear in the number of slots, and a decode step, which evicts one a head, does not
#: pay for a prompt's blocks. A single row would be multiplied by another kernel, to other bits.
_WIDE, _NARROW, _PAIR = 256, 8, 2
#: Evicted slots blended at a time: little work each, so one size serves.
_BLEND = 16


@struct.dataclass
class Matches:
    """The evicted slots of each head, and where each would go.

    Attributes:
        slot: the evicted slots, ascending, first in the list; what follows has no meaning.
        target: the kept slot most like it, the lower one on ties.
        u: their cosine; -inf where the list has ended, or nothing may be merged into.
    """

    slot: Int32[Array, "b h n"]
    target: Int32[Array, "b h n"]
    u: Float32[Array, "b h n"]

    def mean(self) -> Float32[Array, " b"]:
        """Mean cosine over the matched slots of all heads of a row; NaN where there are none."""
        found = self.u > -jnp.inf
        return jnp.where(found, self.u, 0.0).sum((1, 2)) / found.sum((1, 2))


def _listed(mask: Mask) -> Int32[Array, "b h m"]:
    """The slots in `mask`, ascending, in a list with room for a block behind it."""
    return jnp.pad(first(mask), ((0, 0), (0, 0), (0, _WIDE)))


def _part(x: Array, at: Number, size: int) -> Array:
    return lax.dynamic_slice_in_dim(x, at, size, axis=2)


def _rows(x: Array, slots: Int32[Array, "b h m"]) -> Array:
    return jnp.take_along_axis(x, slots[..., None], axis=2)


def _closest(
    rows: Float32[Array, "b h m d"], others: Float32[Array, "b h c d"], size: Float32[Array, "b h c"], real: Mask
) -> tuple[Int32[Array, "b h m"], Float32[Array, "b h m"]]:
    """(argmax, max) of rows · others / size over the real ones; the lower on ties, -inf if none is. Not argmax, which is slower."""
    product = jnp.einsum("bhmd,bhcd->bhmc", rows, others, precision=lax.Precision.HIGHEST)
    cosine = product / size[:, :, None]
    cosine = jnp.where(real[:, :, None], cosine, -jnp.inf)
    best, last = cosine.max(-1), cosine.shape[-1] - 1
    return jnp.where(cosine == best[..., None], jnp.arange(last + 1, dtype=jnp.int32), last).min(-1), best


def _closest_of_list(
    rows: Float32[Array, "b h m d"], x: Float32[Array, "b h n d"], size: Float32[Array, "b h n"], targets: Mask
) -> tuple[Int32[Array, "b h m"], Float32[Array, "b h m"]]:
    """As `_closest`, a block of targets at a time, so that work follows their number too."""
    held = targets.sum(-1).astype(jnp.int32)
    listed = _listed(targets)

    def look(i, best):
        at = _part(listed, i * _WIDE, _WIDE)
        real = i * _WIDE + jnp.arange(_WIDE) < held[..., None]
        j, u = _closest(rows, _rows(x, at), jnp.take_along_axis(size, at, 2), real)
        better = u > best[1]
        return jnp.where(better, jnp.take_along_axis(at, j, 2), best[0]), jnp.where(better, u, best[1])

    nothing = jnp.zeros(rows.shape[:3], jnp.int32), jnp.full(rows.shape[:3], -jnp.inf, jnp.float32)
    return lax.fori_loop(0, (held.max() + _WIDE - 1) // _WIDE, look, nothing)


def match(x: Keys, evicted: Mask, targets: Mask) -> Matches:
    """u_i = max_j cos(x_i, x_j) and j*(i) = argmax_j over the slots j in `targets`, for every slot i in `evicted`.

    A row of zeros has cosine 0 with everything. float32. Source: D2O, arXiv 2406.13035, equation 9.
    """
    n, x, slot = x.shape[2], x.astype(jnp.float32), _listed(evicted)
    size = length(x)
    count = evicted.sum(-1).astype(jnp.int32)

    def compare(found, first, block):
        rows = unit(_rows(x, _part(slot, first, block)))
        closest = _closest_of_list if block == _WIDE else _closest
        target, u = closest(rows, x, size, targets)
        new = target, jnp.where(first + jnp.arange(block) < count[..., None], u, -jnp.inf)
        return jax.tree.map(lambda old, part: lax.dynamic_update_slice_in_dim(old, part, first, 2), found, new)

    found = jnp.zeros_like(slot), jnp.full(slot.shape, -jnp.inf, jnp.float32)
    done, most = jnp.int32(0), -(-count.max() // _PAIR) * _PAIR
    for block in (_WIDE, _NARROW, _PAIR):
        if block <= n:
            blocks = (most - done) // block
            found = lax.fori_loop(0, blocks, lambda i, found, at=done, block=block: compare(found, at + i * block, block), found)
            done += blocks * block
    target, u = found
    return Matches(slot=slot[..., :n], target=target[..., :n], u=u[..., :n])


def blend(xs: tuple, matches: Matches, joins: Bool[Array, "b h n"], weights: PyTree) -> tuple:
    """x_j ← (x_j + Σ_i w_i x_i) / (1 + Σ_i c_i) over the matched slots i in `joins` whose target is j.

    All slots of a target enter one sum: blending them in turn would give another result. A slot nobody joins keeps its bits.

    Args:
        xs: arrays [b, h, n, d] that take the same weights.
        joins: which entries of the list are merged; the others are lost.
        weights: u → (w, c).

    float32 sums, each array's own dtype back.
    """
    w, c = (jnp.where(joins, y, 0.0) for y in weights(matches.u))
    listed = [jnp.pad(y, ((0, 0), (0, 0), (0, _BLEND))) for y in (matches.slot, matches.target, w, c)]
    b, h = (i[..., None] for i in jnp.indices(joins.shape[:2]))

    def add(i, sums):
        slot, target, w, c = (_part(y, i * _BLEND, _BLEND) for y in listed)

        def join(total, x):
            return total.at[b, h, target].add(w[..., None] * _rows(x, slot).astype(jnp.float32))

        above, below = sums
        return [join(*pair) for pair in zip(above, xs, strict=True)], below.at[b, h, target].add(c)

    longest = (matches.u > -jnp.inf).sum(-1).max().astype(jnp.int32)
    start = [x.astype(jnp.float32) for x in xs], jnp.ones(joins.shape, jnp.float32)
    above, below = lax.fori_loop(0, (longest + _BLEND - 1) // _BLEND, add, start)
    return tuple((a / below[..., None]).astype(x.dtype) for a, x in zip(above, xs, strict=True))
