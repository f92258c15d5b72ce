"""Evicted slots blended into the kept slot most like them, if they are like enough (D2O)."""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.merge.match import Matches, blend, match
from kvjax.stage import Merger
from kvjax.types import Mask, Number, Scores
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

    beta: Number = 0.7

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


@struct.dataclass
class Keys:
    """Keys and values follow the likeness of the keys. moves: memory → (what is compared, what is blended)."""

    moves: ClassVar[dict] = {"tau": ("k", ("k", "v"))}


@struct.dataclass
class Values:
    """Keys and values follow the likeness of the values."""

    moves: ClassVar[dict] = {"tau": ("v", ("k", "v"))}


@struct.dataclass
class Both:
    """Keys follow the keys and values the values, each with a threshold of its own."""

    moves: ClassVar[dict] = {"tau": ("k", ("k",)), "tau_values": ("v", ("v",))}


@struct.dataclass
class WeightedNearest(Merger):
    """Every evicted slot i of cosine U_i = max_j cos(k_i, k_j) >= tau is blended into its j*; the others are dropped.

    One decision per KV head and token; tau is one number per layer and row, moved by the mean of U over all heads of the row, unset
    before the first eviction and unchanged where nothing is evicted. Kept slots of every kind can be merged into.

    Args:
        threshold: EMA(beta), Fixed(tau) or NoThreshold().
        weights: SoftmaxWeights() as in the paper, ScatterMean() as in its release, Average().
        feature: what likeness is measured on: Keys(), Values() or Both().
        spared: the first positions of the text that nothing is merged into (4 leaves the sinks alone).

    Merged keys are means of keys rotated at different positions, left as they are. All arithmetic is float32, rounded once.
    Source: D2O, arXiv 2406.13035, equations 9-12. Differs: the release averages U over the heads before it compares with tau,
    although the heads hold different tokens, and carries tau from one prompt to the next.
    """

    threshold: Any = EMA()
    weights: Any = SoftmaxWeights()
    feature: Any = Keys()
    spared: Number = 0

    @property
    def memory(self) -> tuple[str, ...]:
        return tuple(self.feature.moves)

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: dict) -> tuple[LayerView, dict]:
        del scores
        evicted, targets = view.valid & ~keep, keep & (view.pos >= self.spared)
        merged, moved = {}, {}
        for name, (compared, blended) in self.feature.moves.items():
            found = match(getattr(view, compared), evicted, targets)
            some = (found.u > -jnp.inf).any((1, 2))
            tau = moved[name] = jnp.where(some, self.threshold(found, memory[name]), memory[name])
            joins = (found.u > -jnp.inf) & (found.u >= tau[:, None, None])
            new = blend(tuple(getattr(view, x) for x in blended), found, joins, self.weights)
            merged.update(zip(blended, new, strict=True))
            if "k" in blended:  # keys decide how much attention a slot gets
                merged["stats"] = self.counted(view.stats, found, joins)
        return view.replace(**merged), moved

    def counted(self, stats: dict, matches: Matches, joins: Mask) -> dict:
        """The statistics after a merge: a merged slot attracts attention as one token does, and none are kept."""
        del matches, joins
        return stats


@struct.dataclass
class ProportionalNearest(WeightedNearest):
    """`WeightedNearest` whose slots attract attention as all n tokens in them would: bias_j = ln n_j is added to their scores.

    Where the tokens of every slot are alike, attention to what is left is attention to all of them. Scorers that compute attention
    from a view's keys (`WindowAttention`) leave the bias out.

    Source: Token Merging, arXiv 2210.09461, equation 1 ("proportional attention").
    """

    stats: ClassVar[tuple[str, ...]] = ("bias",)

    def counted(self, stats: dict, matches: Matches, joins: Mask) -> dict:
        total = lambda u: (jnp.ones_like(u), jnp.zeros_like(u))  # noqa: E731  n_j ← n_j + Σ n_i
        (n,) = blend((jnp.exp(stats["bias"])[..., None],), matches, joins, total)
        return stats | {"bias": jnp.log(n[..., 0])}
