"""Evicted slots blended into the kept slot most like them, if they are like enough (D2O)."""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.merge.match import Matches, blend, match
from kvjax.ranges import Count, Share
from kvjax.stage import Merger
from kvjax.types import Function, Mask, Number, Scores
from kvjax.view import LayerView

Rows = Float32[Array, " b"]


def moving_threshold(mean: Rows, tau: Rows, beta: Number) -> Rows:
    """tau_t = beta mean_t + (1 - beta) tau_{t-1}; the first tau, after NaN, is the mean itself."""
    return jnp.where(jnp.isnan(tau), mean, beta * mean + (1 - beta) * tau)


@struct.dataclass
class EMA:
    """A threshold that follows the best cosines of what is evicted: see `moving_threshold`.

    Args:
        beta: weight of the newest eviction.

    Source: D2O, arXiv 2406.13035, equation 10; the mean over several evictions is the release's reading.
    """

    beta: Share = 0.7

    def __call__(self, matches: Matches, tau: Rows) -> Rows:
        return moving_threshold(matches.mean(), tau, self.beta)


@struct.dataclass
class NoThreshold:
    """Everything evicted is merged."""

    def __call__(self, matches: Matches, tau: Rows) -> Rows:
        del matches
        return jnp.full_like(tau, -jnp.inf)


@struct.dataclass
class Fixed:
    """A threshold that stays: `tau` at every eviction (infinity merges nothing)."""

    tau: Number = 0.6

    def __call__(self, matches: Matches, tau: Rows) -> Rows:
        del matches
        return jnp.full_like(tau, self.tau)


@struct.dataclass
class SoftmaxWeights:
    """x_j ← (e x_j + Σ exp(u_i) x_i) / (e + Σ exp(u_i)): the kept slot weighs most, its likeness to itself being 1.

    Source: D2O, arXiv 2406.13035, equations 11-12, with e = exp(1).
    """

    def __call__(self, u: Scores) -> tuple[Scores, Scores]:
        w = jnp.exp(u - 1)
        return w, w


@struct.dataclass
class ScatterMean:
    """x_j ← (x_j + Σ u_i x_i) / (1 + count): what the release of D2O computes. The weights do not sum to 1."""

    def __call__(self, u: Scores) -> tuple[Scores, Scores]:
        return u, jnp.ones_like(u)


@struct.dataclass
class Average:
    """x_j ← (x_j + Σ x_i) / (1 + count)."""

    def __call__(self, u: Scores) -> tuple[Scores, Scores]:
        return jnp.ones_like(u), jnp.ones_like(u)


class Feature(NamedTuple):
    """What is compared, and what is blended by the likeness found: names of fields of a view."""

    compare: str
    blend: tuple[str, ...]


@struct.dataclass
class KeyLikeness:
    """Keys and values follow the likeness of the keys."""

    features: ClassVar[tuple[Feature, ...]] = (Feature("k", ("k", "v")),)


@struct.dataclass
class ValueLikeness:
    """Keys and values follow the likeness of the values."""

    features: ClassVar[tuple[Feature, ...]] = (Feature("v", ("k", "v")),)


@struct.dataclass
class OwnLikeness:
    """Keys follow the keys and values the values, each with a threshold of its own."""

    features: ClassVar[tuple[Feature, ...]] = (Feature("k", ("k",)), Feature("v", ("v",)))


@struct.dataclass
class WeightedNearest(Merger):
    """Every evicted slot i of cosine U_i = max_j cos(k_i, k_j) >= tau is blended into its j*; the others are dropped.

    One decision per KV head and token; tau is one number per layer and row, moved by the mean of U over all heads of the row, unset
    before the first eviction and unchanged where nothing is evicted. Kept slots of every kind can be merged into.

    Args:
        threshold: EMA(beta), Fixed(tau) or NoThreshold().
        weights: SoftmaxWeights() as in the paper, ScatterMean() as in its release, Average().
        feature: what likeness is measured on: KeyLikeness(), ValueLikeness() or OwnLikeness().
        spared: the first positions of the text that nothing is merged into (4 leaves the sinks alone).

    Merged keys are means of keys rotated at different positions, left as they are. All arithmetic is float32, rounded once.
    Source: D2O, arXiv 2406.13035, equations 9-12. Differs: the release averages U over the heads before it compares with tau,
    although the heads hold different tokens, and carries tau from one prompt to the next.
    """

    threshold: Function = EMA()
    weights: Function = SoftmaxWeights()
    feature: KeyLikeness | ValueLikeness | OwnLikeness = KeyLikeness()
    spared: Count = 0

    def begin(self, rows: int) -> tuple[Rows, ...]:
        """A threshold for each feature; NaN before the first eviction."""
        return tuple(jnp.full(rows, jnp.nan, jnp.float32) for _ in self.feature.features)

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: tuple[Rows, ...]) -> tuple[LayerView, tuple[Rows, ...]]:
        del scores
        evicted, targets = view.valid & ~keep, keep & (view.pos >= self.spared)
        merged, moved = view, []
        for feature, before in zip(self.feature.features, memory, strict=True):
            found = match(getattr(view, feature.compare), evicted, targets)
            some = (found.u > -jnp.inf).any((1, 2))
            tau = jnp.where(some, self.threshold(found, before), before)
            joins = (found.u > -jnp.inf) & (found.u >= tau[:, None, None])
            new = blend(tuple(getattr(view, x) for x in feature.blend), found, joins, self.weights)
            merged = merged.replace(**dict(zip(feature.blend, new, strict=True)))
            if "k" in feature.blend:  # keys decide how much attention a slot gets
                merged = merged.replace(bias=self.counted(view.bias, found, joins))
            moved.append(tau)
        return merged, tuple(moved)

    def counted(self, bias: Scores | None, matches: Matches, joins: Mask) -> Scores | None:
        """The bias after a merge: a merged slot attracts attention as one token does, and none is kept."""
        del matches, joins
        return bias


def _sum_of_members(u: Scores) -> tuple[Scores, Scores]:
    """Weights of `blend` that add up: n_j ← n_j + Σ n_i."""
    return jnp.ones_like(u), jnp.zeros_like(u)


@struct.dataclass
class ProportionalNearest(WeightedNearest):
    """`WeightedNearest` whose slots attract attention as all n tokens in them would: bias_j = ln n_j is added to their scores.

    Where the tokens of every slot are alike, attention to what is left is attention to all of them. Scorers that compute attention
    from a view's keys (`WindowAttention`) leave the bias out.

    Source: Token Merging, arXiv 2210.09461, equation 1 ("proportional attention").
    """

    biased: ClassVar[bool] = True

    def counted(self, bias: Scores, matches: Matches, joins: Mask) -> Scores:
        (n,) = blend((jnp.exp(bias)[..., None],), matches, joins, _sum_of_members)
        return jnp.log(n[..., 0])
