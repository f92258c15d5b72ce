"""The value of what goes is added to what follows it, by chance (CaM)."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.kernels.compact import first
from kvjax.noise import uniform_at
from kvjax.ranges import Size
from kvjax.stage import Merger
from kvjax.types import Layer, Mask, Number, Scores, Values
from kvjax.view import LayerView


def _prefix(x: Array) -> Array:
    """Sums over the slots before each, one more than there are slots."""
    return jnp.pad(jnp.cumsum(x, axis=2), ((0, 0), (0, 0), (1, 0)) + ((0, 0),) * (x.ndim - 3))


def probability(a: Scores, keep: Mask, over: int | None) -> Float32[Array, "b h n"]:
    """p_i = clip(a_i / mean of a over the kept slots after i, or over the next `over` of them, 0, 1).

    0 where nothing follows or both are 0; 1 where only the mean is 0.
    """
    before = _prefix(keep.astype(jnp.int32))[:, :, :-1]
    after, held = before + keep, keep.sum(-1, keepdims=True)
    kept = jnp.take_along_axis(a, first(keep), -1)
    sums = _prefix(jnp.where(jnp.arange(keep.shape[-1]) < held, kept, 0.0))
    end = held if over is None else jnp.minimum(after + over, held)
    end = jnp.broadcast_to(end, after.shape)
    total = jnp.take_along_axis(sums, end, -1) - jnp.take_along_axis(sums, after, -1)
    count = end - after
    ratio = a * count / jnp.where(total > 0, total, 1.0)
    return jnp.where(count == 0, 0.0, jnp.where(total > 0, jnp.clip(ratio, 0.0, 1.0), (a > 0).astype(jnp.float32)))


def spread_values(v: Values, keep: Mask, merges: Bool[Array, "b h n"], m: int) -> Values:
    """v_j + Σ v_i / m over the slots i in `merges` of which j is one of the next m kept ones; slots with none keep their bits.

    Fewer than m that follow get v_i / m each all the same. One slot a head, all that a decode step loses, needs no running sums.
    """
    start = _window_start(keep, m)
    one_each = (merges.sum(-1) <= 1).all()
    return lax.cond(one_each, _spread_one, _spread_all, v, keep, merges, start, m)


def _spread_all(v: Values, keep: Mask, merges: Bool[Array, "b h n"], start: Int32[Array, "b h n"], m: Number) -> Values:
    """The slots from `start` of a kept slot to itself as a difference of running sums."""
    part = jnp.where(merges[..., None], v.astype(jnp.float32), 0.0) / m
    given, count = _prefix(part), _prefix(merges.astype(jnp.int32))
    added = given[:, :, :-1] - jnp.take_along_axis(given, start[..., None], 2)
    many = count[:, :, :-1] - jnp.take_along_axis(count, start, 2)
    return jnp.where((keep & (many > 0))[..., None], v.astype(jnp.float32) + added, v).astype(v.dtype)


def _spread_one(v: Values, keep: Mask, merges: Bool[Array, "b h n"], start: Int32[Array, "b h n"], m: Number) -> Values:
    """`_spread_all` where no head merges two, to the bit."""
    i, at = jnp.argmax(merges, -1, keepdims=True), jnp.arange(keep.shape[-1])
    reached = keep & merges.any(-1, keepdims=True) & (start <= i) & (i < at)
    added = lax.optimization_barrier(jnp.take_along_axis(v, i[..., None], 2).astype(jnp.float32) / m)  # rounded before it is added
    return jnp.where(reached[..., None], v.astype(jnp.float32) + added, v).astype(v.dtype)


def _window_start(keep: Mask, m: int) -> Int32[Array, "b h n"]:
    """For each slot the first slot behind the kept one m before it: what lies from there on reaches it."""
    behind = _prefix(keep.astype(jnp.int32))[:, :, :-1] - m
    start = jnp.take_along_axis(first(keep), jnp.maximum(behind, 0), -1) + 1
    return jnp.where(behind >= 0, start, 0)


@struct.dataclass
class ByChance(Merger):
    """v_j += v_i / m for the next m kept slots j of every evicted i whose draw is below β p_i: see `probability`.

    Args:
        m: slots an evicted value goes to.   over: kept slots under the mean, None for all that follow.
        beta: β, a factor of the probability; 0 leaves the host as it is.
        seed: of the draws, which depend on layer, KV head and position.   layer: set by `at`.

    Scores must be attention received. Keys stay, values grow: it is a sum. Slots are in position order.
    Source: *CaM: Cache Merging for Memory-efficient LLMs Inference*, ICML 2024, section 3. Differs: one draw for each KV head.
    """

    m: Size = struct.field(pytree_node=False, default=32)
    over: int | None = struct.field(pytree_node=False, default=None)
    beta: Number = 1.0
    seed: Number = 0
    layer: Number = 0

    def at(self, layer: Layer) -> "ByChance":
        return self.replace(layer=layer)

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        draw = uniform_at(self.seed, self.layer, jnp.arange(keep.shape[1])[:, None], view.pos)
        p = self.beta * probability(jnp.where(view.valid, scores, 0.0), keep, self.over)
        return view.replace(v=spread_values(view.v, keep, view.valid & ~keep & (draw < p), self.m)), memory
