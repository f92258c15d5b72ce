"""Evicted slots into the nearest kept one, weighted by votes and by unnormalised attention (KeepKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, PyTree

from kvjax.merge.match import Matches, blend, match
from kvjax.ranges import NonNegative
from kvjax.score.raw_mass import Masses, RawMass
from kvjax.stage import Merger, Scorer
from kvjax.types import Mask, Number, Scores
from kvjax.view import LayerView


def mean_seen(recent: Float32[Array, "b h n w"]) -> Scores:
    """Mean over the queries that could see a slot; 0 where none could."""
    return recent.sum(-1) / jnp.maximum((recent > 0).sum(-1), 1)


def means(xs: tuple, weight: Scores, found: Matches, joins: Bool[Array, "b h n"]) -> tuple:
    """x_r ← (w_r x_r + Σ w_e x_e) / (w_r + Σ w_e)."""
    mine, theirs = (jnp.take_along_axis(weight, i, -1) for i in (found.slot, found.target))
    return blend(xs, found, joins, lambda u: (mine / theirs, mine / theirs))


def totals(xs: tuple, found: Matches, joins: Bool[Array, "b h n"]) -> tuple:
    """x_r ← x_r + Σ x_e."""
    return blend(xs, found, joins, lambda u: (jnp.ones_like(u), jnp.zeros_like(u)))


def joined(state: Masses, c: Scores, found: Matches, joins: Bool[Array, "b h n"]) -> tuple[Masses, Scores]:
    """The scorer's numbers as means weighted by votes, each query's over the slots it could see; and the votes, which add up."""
    seen = c[..., None] * (state.recent > 0)
    weighted, votes, n = totals((c[..., None] * state.recent, seen, c[..., None]), found, joins)
    n = n[..., 0]
    return Masses(recent=jnp.where((n > c)[..., None], weighted / jnp.maximum(votes, 1e-30), state.recent)), n


@struct.dataclass
class ByVotes(Merger):
    """k_r, v_r ← Σ w x / Σ w over r and the evicted e nearest to it, w = c (mean exp(z) + eps); votes c add up, the bias is ln c.

    The mean runs over those of the last queries that could see a slot; z is without the bias. An evicted slot whose largest cosine
    with a kept key is below `threshold` is dropped; slots evicted together are merged together.

    Source: KeepKV, arXiv 2504.09936, section 3, as released; eps is the smallest normal number of 16 bits there. Differs: a late
    token that an older slot joins keeps what queries before it paid that slot; the release drops it.
    """

    biased: ClassVar[bool] = True
    state_of: ClassVar[type[Scorer]] = RawMass
    threshold: Number = 0.8
    eps: NonNegative = 2.0**-14

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, PyTree]:
        del scores
        found = match(view.k, view.valid & ~keep, keep)
        joins = (found.u > -jnp.inf) & (found.u >= self.threshold)
        c = jnp.where(view.valid, jnp.exp(view.bias), 1.0)
        weight = c * (mean_seen(view.scored.recent) + self.eps)
        k, v = means((view.k, view.v), weight, found, joins)
        scored, n = joined(view.scored, c, found, joins)
        return view.replace(k=k, v=v, bias=jnp.where(n > c, jnp.log(n), view.bias), scored=scored), memory
