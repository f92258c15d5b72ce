"""The most that any query of the window gives a token, with a floor, weighed by what its value adds (DefensiveKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32

from kvjax.evidence import Evidence, Need, ProjectedValueNorm, WindowQueries
from kvjax.order import places
from kvjax.ranges import Size
from kvjax.score.pool import AvgPool
from kvjax.score.window_rows import before_window, real_rows, window_rows
from kvjax.stage import Scorer
from kvjax.types import Function, Mask, Number, Scores
from kvjax.view import LayerView

#: A place in no ranking.
NEVER = 1e9


def mass_preserving_pool(a: Float32[Array, "*x n"], inside: Bool[Array, "*y n"], pool: Function) -> Float32[Array, "*x n"]:
    """pool(a), cut off where not inside and scaled so that every row keeps its sum; a is 0 where not inside."""
    pooled = jnp.where(inside, pool(a), 0.0)
    total = pooled.sum(-1, keepdims=True)
    return pooled * jnp.where(total > 0, a.sum(-1, keepdims=True) / jnp.where(total > 0, total, 1.0), 0.0)


def risk(a: Float32[Array, "b h g w n"], before: Mask, pool: Function) -> Scores:
    """max(m, mean over tokens of m), m the largest over the group and the rows of a row's pooled attention before the window."""
    inside = before[:, :, None, None]
    worst = mass_preserving_pool(jnp.where(inside, a, 0.0), inside, pool).max((2, 3))
    mean = worst.sum(-1, keepdims=True) / jnp.maximum(before.sum(-1, keepdims=True), 1)
    return jnp.where(before, jnp.maximum(worst, mean), 0.0)


def weigh(u: Scores, w: Scores) -> Scores:
    """u w / (Σ of w over the KV heads): a token's share, not a head's."""
    total = w.sum(1, keepdims=True)
    return u * jnp.where(total > 0, w / jnp.where(total > 0, total, 1.0), 0.0)


def forced_ranks(mean: Scores, before: Mask, after: Mask, threshold: Number) -> Scores:
    """Ranks 0, 1, ... of the tokens that are forced, NEVER of the others.

    They are the highest of each head's mean attention before the window, its sum made 1, until it covers threshold - bias; the
    token that crosses it is not forced. The bias is one number for all heads: the mean attention, as it is, of the last of these
    tokens, as many as the window has (`after` says which).
    """
    a = jnp.where(before, mean, 0.0)
    bias = jnp.where(after, a, 0.0).sum(-1, keepdims=True).mean(1, keepdims=True)
    a = a / jnp.maximum(a.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)
    order = jnp.argsort(jnp.where(before, -a, jnp.inf), -1, stable=True)
    covered = jnp.cumsum(jnp.take_along_axis(a, order, -1), -1) < threshold - bias
    rank = places(order)
    forced = jnp.take_along_axis(jnp.cumprod(covered.astype(jnp.int32), -1), rank, -1) > 0
    return jnp.where(forced & before, rank.astype(jnp.float32), NEVER)


@struct.dataclass
class WorstCase(Scorer):
    """u = max(m, mean m) · w / Σ_h w, m = max_{g, window} pool(p), w = mean_g ‖v W_o‖₁; forced tokens as the second ranking.

    The softmax runs over all keys; pooling runs over the keys before the window and keeps each row's mass. Slots inside the window
    score 0 (protect them). The second ranking is `forced_ranks`; how many of them count, a budget decides (`ForcedFirst`).

    Args:
        window: observation window, in queries.   pool: smoothing along the tokens.
        threshold: share of a head's attention that forced tokens cover; 0 forces nothing.

    Source: DefensiveKV, arXiv 2510.13334, on CriticalKV, arXiv 2502.03805; the bias as in the release, whose batch is one row.
    """

    gives_second: ClassVar[type | None] = Array

    window: Size = struct.field(pytree_node=False, default=32)
    pool: Function = AvgPool(5)
    threshold: Number = 0.9

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window), ProjectedValueNorm()})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        u = risk(self._rows(view, evidence), before_window(view, evidence.length, self.window), self.pool)
        return weigh(u, evidence.of(ProjectedValueNorm()).placed(jnp.zeros_like(u), view.pos))

    def second(self, view: LayerView, evidence: Evidence, scores: Scores) -> Scores:
        del scores
        before, earlier = (before_window(view, evidence.length, times * self.window) for times in (1, 2))
        return forced_ranks(self._rows(view, evidence).mean((2, 3)), before, before & ~earlier, self.threshold)

    def _rows(self, view: LayerView, evidence: Evidence) -> Float32[Array, "b h g w n"]:
        q, length = evidence.window_queries(self.window), evidence.length
        p = window_rows(q, view.k, pos=view.pos, valid=view.valid, length=length, window=evidence.window)
        return jnp.where(real_rows(length, self.window)[:, None, None, :, None], p, 0.0)
