"""One slot stays of every run of neighbours whose keys are alike (KVMerger)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.budget import whole_share
from kvjax.kernels.select_top import ordered, select_top
from kvjax.protocols import Decoder
from kvjax.ranges import Share
from kvjax.segments import first_largest
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


def singletons(
    scores: Float32[Array, "*b n"], valid: Bool[Array, "*b n"], heavy: Int32[Array, "*b"], recent: Int32[Array, "*b"]
) -> Bool[Array, "*b n"]:
    """The last `recent` slots held and, of the others, the `heavy` of highest score."""
    behind = valid.sum(-1, keepdims=True) - recent[..., None]
    last = valid & (jnp.arange(valid.shape[-1]) >= behind)
    return last | select_top(jnp.where(valid & ~last, ordered(scores), jnp.uint32(0)), heavy)


def forced_cuts(single: Bool[Array, "*b n"]) -> Bool[Array, "*b n"]:
    """The links, each from a slot to the next, that a singleton breaks."""
    return single | jnp.roll(single, -1, -1)


def cuts(
    cosine: Float32[Array, "*b n"], valid: Bool[Array, "*b n"], forced: Bool[Array, "*b n"], runs: Int32[Array, "*b"]
) -> Bool[Array, "*b n"]:
    """The runs - 1 links that are cut: the forced ones first, then those of lowest cosine, ties to the lower position."""
    link = valid & jnp.roll(valid, -1, -1) & (jnp.arange(valid.shape[-1]) < valid.shape[-1] - 1)
    order = jnp.where(forced, jnp.uint32(0xFFFFFFFF), ordered(-cosine))
    return select_top(jnp.where(link, order, jnp.uint32(0)), jnp.maximum(runs - 1, 0))


@struct.dataclass
class Runs(Selector):
    """A head's b slots are those of b runs of neighbours: the slot of highest score of each, ties to the lower position.

    Runs end at the b - 1 lowest cosines of neighbouring keys. The last floor(b · recent_share) tokens and, of the others, the
    floor(b · heavy_share) with the highest scores are runs of their own. It reads `NeighbourLikeness`.

    Source: KVMerger, arXiv 2407.08454, section 4.1. Differs: as many runs as the budget asks for, not a threshold.
    """

    reads_second: ClassVar[type | None] = Array
    heavy_share: Share = 0.25
    recent_share: Share = 0.25

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if min(self.heavy_share, self.recent_share) < 0 or 2 * self.heavy_share + self.recent_share >= 1:
            raise ValueError(
                "runs of one token take two cuts each: 2 · heavy_share + recent_share must be below 1; "
                f"got {self.heavy_share} and {self.recent_share}"
            )

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        behind = view.valid.sum(-1) - whole_share(budget, self.recent_share)
        return view.valid & (jnp.arange(view.valid.shape[-1]) >= behind[..., None])

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        valid, b = ranking.valid, jnp.maximum(budget, 1)
        heavy, recent = whole_share(b, self.heavy_share), whole_share(b, self.recent_share)
        forced = forced_cuts(singletons(ranking.scores, valid, heavy, recent))
        cut = cuts(ranking.second, valid, forced, b)
        run = jnp.cumsum(jnp.roll(cut, 1, -1).at[..., 0].set(False), -1).astype(jnp.int32)
        pivot = first_largest(jnp.where(valid, ordered(ranking.scores), jnp.uint32(0)), run)
        return valid & (pivot == jnp.arange(valid.shape[-1]))
