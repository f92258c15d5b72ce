"""A run of neighbours becomes one slot, weighted by nearness to the slot that stays (KVMerger)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.budget import whole_share
from kvjax.kernels.compact import first
from kvjax.kernels.select_top import ordered
from kvjax.ranges import Share
from kvjax.score.neighbours import neighbour_cosines
from kvjax.segments import first_largest, of_slot, sums
from kvjax.select.runs import forced_cuts, singletons
from kvjax.stage import Merger
from kvjax.types import Keys, Mask, Scores, Values
from kvjax.view import LayerView


def nearest_pivot(cosine: Scores, forced: Mask, valid: Mask, keep: Mask) -> Int32[Array, "b h n"]:
    """The kept slot each slot goes to: between two that stay the run is cut at a forced link, else at the lowest cosine."""
    before = jnp.cumsum(keep, -1).astype(jnp.int32)
    order = jnp.where(forced, jnp.uint32(0xFFFFFFFF), ordered(-cosine))
    gap = jnp.where(valid, before, keep.shape[-1] - 1)
    end = first_largest(jnp.where(valid, order, jnp.uint32(0)), gap)
    slot = jnp.arange(keep.shape[-1])
    held = keep.sum(-1, keepdims=True).astype(jnp.int32)
    run = jnp.where(keep | (slot <= end) | (before == held), before - 1, before)
    return jnp.take_along_axis(first(keep), jnp.clip(run, 0, jnp.maximum(held - 1, 0)), -1)


def gaussian_weights(k: Keys, pivot: Int32[Array, "b h n"], valid: Mask) -> Float32[Array, "b h n"]:
    """w_i = g_i / Σ g over the run, g_i = exp(-‖k_i - k_p‖² / 2σ²), σ² the mean of ‖k_i - k_p‖² over it; equal where σ = 0."""
    k = k.astype(jnp.float32)
    squared = jnp.where(valid, ((k - of_slot(k, pivot)) ** 2).sum(-1), 0.0)
    members = of_slot(sums(valid.astype(jnp.float32), pivot), pivot)
    variance = of_slot(sums(squared, pivot), pivot) / jnp.maximum(members, 1.0)
    g = jnp.exp(-squared / (2 * jnp.where(variance > 0, variance, 1.0)))
    g = jnp.where(valid, g, 0.0)
    return g / jnp.maximum(of_slot(sums(g, pivot), pivot), 1e-30)


def merged_runs(k: Keys, v: Values, pivot: Int32[Array, "b h n"], valid: Mask) -> tuple[Keys, Values]:
    """(Σ w_i k_i, |R| Σ w_i v_i) of the run R of every kept slot, at that slot; a run of one keeps its bits."""
    w = gaussian_weights(k, pivot, valid)
    members = sums(valid.astype(jnp.int32), pivot)[..., None]
    keys, values = (sums(w[..., None] * x.astype(jnp.float32), pivot) for x in (k, v))
    some = members > 1
    return jnp.where(some, keys, k).astype(k.dtype), jnp.where(some, members * values, v).astype(v.dtype)


@struct.dataclass
class GaussianRuns(Merger):
    """Every evicted slot joins a kept neighbour; see `merged_runs`. The value is scaled by how many tokens are in it.

    Args:
        heavy_share, recent_share: those of `Runs`, whose runs these are; with another selector runs lie between what it keeps.

    Slots are in position order. Merged again, a slot counts as one token. Source: KVMerger, arXiv 2407.08454, section 4.2. Differs:
    σ² is the mean squared distance to the pivot (the printed definition rests on the weights themselves).
    """

    heavy_share: Share = 0.25
    recent_share: Share = 0.25

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        runs = keep.sum(-1).astype(jnp.int32)
        heavy, recent = whole_share(runs, self.heavy_share), whole_share(runs, self.recent_share)
        forced = forced_cuts(singletons(scores, view.valid, heavy, recent))
        pivot = nearest_pivot(neighbour_cosines(view.k), forced, view.valid, keep)
        k, v = merged_runs(view.k, view.v, pivot, view.valid)
        return view.replace(k=k, v=v), memory
