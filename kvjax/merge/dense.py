"""Evicted tokens averaged into dense slots that say by their bias how many tokens they hold (ZeroMerge)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.kernels.compact import first
from kvjax.kernels.select_top import select_top
from kvjax.merge.match import Matches, blend
from kvjax.ranges import Share, Size
from kvjax.rank_keys import ordered
from kvjax.select.dense import dense_slots, tail_slots
from kvjax.stage import Merger
from kvjax.types import Function, Keys, Mask, Scores
from kvjax.view import LayerView

#: The bias of a dense slot of a single token: it tells the slot from others, and changes attention by a millionth.
_ONE = 1e-6


@struct.dataclass
class LargestDot:
    """k_i · k_j."""

    def __call__(self, k: Keys, dense: Float32[Array, "b h m d"]) -> Float32[Array, "b h n m"]:
        return jnp.einsum("bhnd,bhmd->bhnm", k.astype(jnp.float32), dense, precision="highest")


@struct.dataclass
class SmallestDistance:
    """-‖k_i - k_j‖², but for what is the same for every j."""

    def __call__(self, k: Keys, dense: Float32[Array, "b h m d"]) -> Float32[Array, "b h n m"]:
        return 2 * LargestDot()(k, dense) - (dense * dense).sum(-1)[:, :, None]


def into(view: LayerView, evicted: Mask, target: Int32[Array, "b h n"]) -> LayerView:
    """x_t ← (c_t x_t + Σ c_i x_i) / (c_t + Σ c_i) over the evicted slots i of target t, keys and values, bias ln c; -1: dropped."""
    slot = first(evicted)
    goal = jnp.take_along_axis(target, slot, -1)
    real = (jnp.arange(slot.shape[-1]) < evicted.sum(-1, keepdims=True)) & (goal >= 0)
    matches = Matches(slot=slot, target=jnp.maximum(goal, 0), u=jnp.where(real, 0.0, -jnp.inf))
    # a bias of _ONE says one token
    c = jnp.where(view.bias > 2 * _ONE, jnp.exp(view.bias), 1.0)
    mine, theirs = (jnp.take_along_axis(c, i, -1) for i in (slot, matches.target))
    k, v = blend((view.k, view.v), matches, real, lambda u: (mine / theirs, mine / theirs))
    (n,) = blend((c[..., None],), matches, real, lambda u: (jnp.ones_like(u), jnp.zeros_like(u)))
    grown = jnp.where(n[..., 0] > c, jnp.log(n[..., 0]), view.bias)
    return view.replace(k=k, v=v, bias=grown)


@struct.dataclass
class IntoDense(Merger):
    """What `DenseAndTop` evicts: of a prompt run by run into the run's first slot, then into the nearest dense slot.

    Args:
        dense, tail_share: those of `DenseAndTop`.
        nearest: LargestDot() or SmallestDistance(); equal: the lower position.

    Source: ZeroMerge, arXiv 2503.10714, section 3.
    """

    biased: ClassVar[bool] = True
    dense: Size = struct.field(pytree_node=False, default=1)
    tail_share: Share = 0.1
    nearest: Function = LargestDot()

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        evicted, old = view.valid & ~keep, dense_slots(view, self.dense)
        some, starting = evicted.any(-1, keepdims=True), ~old.any(-1, keepdims=True)
        starts = self._starts(view, keep, scores) & starting
        slot = jnp.arange(keep.shape[-1], dtype=jnp.int32)
        target = jnp.where(starting, lax.cummax(jnp.where(starts, slot, -1), axis=2), self._nearest(view, old & keep))
        view = view.replace(bias=jnp.where(some & (starts | old) & (view.bias == 0), _ONE, view.bias))
        return into(view, evicted, target), memory

    def _starts(self, view: LayerView, keep: Mask, scores: Scores) -> Mask:
        """The kept slots that runs begin with: but for the recent ones, the `dense` of lowest score."""
        oldest = view.length[:, None] - tail_slots(keep.sum(-1).astype(jnp.int32), self.tail_share)
        older = keep & (view.pos < oldest[..., None])
        tops = jnp.maximum(older.sum(-1).astype(jnp.int32) - self.dense, 0)
        return older & ~select_top(jnp.where(older, ordered(scores), jnp.uint32(0)), tops)

    def _nearest(self, view: LayerView, dense: Mask) -> Int32[Array, "b h n"]:
        listed = first(dense)[..., : self.dense]
        real = jnp.arange(self.dense) < dense.sum(-1, keepdims=True)
        k = jnp.take_along_axis(view.k.astype(jnp.float32), listed[..., None], 2)
        best = jnp.where(real[:, :, None], self.nearest(view.k, k), -jnp.inf).argmax(-1)
        return jnp.where(real.any(-1, keepdims=True), jnp.take_along_axis(listed, best, -1), -1)
