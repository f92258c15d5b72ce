"""The mean attention of tokens whose attention is steady; what is unsteady is spared (RoCo)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import AttentionStatistics, ColumnSums, Evidence, Need, OfGroupMean
from kvjax.evidence.reduce import SumOfSquares
from kvjax.kernels.select_top import ordered, select_top
from kvjax.stage import Scorer
from kvjax.types import Mask, Number, Scores
from kvjax.view import LayerView


def mean_and_deviation(s1: Scores, s2: Scores, seen: Int32[Array, "b h n"]) -> tuple[Scores, Scores]:
    """(μ, σ) from sums of a and a² over `seen` rows: μ = s1 / c, σ = sqrt(max(s2 / c - μ², 0))."""
    c = jnp.maximum(seen, 1).astype(jnp.float32)
    mu = s1 / c
    return mu, jnp.sqrt(jnp.maximum(s2 / c - mu * mu, 0.0))


def spared(mu: Scores, sd: Scores, free: Mask, feasible: Int32[Array, "b h"]) -> Scores:
    """μ for the `feasible` free slots of least σ (ties to the lower position), 1 + σ for the others: above every μ."""
    steady = select_top(jnp.where(free, ordered(-sd), jnp.uint32(0)), feasible)
    return jnp.where(steady, mu, 1.0 + sd)


@struct.dataclass
class Sums:
    """Σ a and Σ a² of each slot, a the group's mean attention, and 1 where the slot is the prompt's and pinned."""

    s1: Float32[Array, "*x"]
    s2: Float32[Array, "*x"]
    pinned: Float32[Array, "*x"]


@struct.dataclass
class SteadyMean(Scorer):
    """u = μ for the k slots of least σ, 1 + σ for the others: the lowest mean goes, among those whose attention varies least.

    Of S slots that may go but one, k = S - 1 - floor(recent (S - 1)): at one token in, one token out S - 1 is the budget.

    Args:
        recent: share of the slots that is spared.   tail: last tokens that are never feasible; protect them, too.
        sinks: first tokens that are never feasible.
        pin_prompt: whether the prompt has no statistics and stays; a budget above the prompt's length is then prompt and rest.

    Source: RoCo, arXiv 2402.06262, section 3; group mean before anything is summed, as in the release.
    """

    recent: Number = 0.3
    tail: Number = 10
    sinks: Number = 0
    pin_prompt: bool = struct.field(pytree_node=False, default=False)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ColumnSums(), _SQUARES})

    def init(self, shape: tuple[int, int, int]) -> Sums:
        zeros = jnp.zeros(shape, jnp.float32)
        return Sums(s1=zeros, s2=zeros, pinned=zeros)

    def observe(self, view: LayerView, evidence: Evidence) -> Sums:
        old = view.state
        if self.pin_prompt and view.ids is not None:
            return old.replace(pinned=view.valid.astype(jnp.float32))
        return old.replace(s1=old.s1 + evidence.column_sums(), s2=old.s2 + evidence.of(_SQUARES)[:, :, 0])

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        length, state = evidence.length[:, None, None], view.state
        mu, sd = mean_and_deviation(state.s1, state.s2, length - view.pos)
        loose = view.valid & (state.pinned == 0)
        free = loose & (view.pos >= self.sinks) & (view.pos < length - self.tail)
        u = spared(mu, sd, free, self._feasible(loose.sum(-1) - 1))
        return jnp.where(state.pinned > 0, jnp.inf, u)

    def _feasible(self, size: Number) -> Int32[Array, "b h"]:
        return (size - jnp.floor(size * self.recent * (1 + 1e-6) + 1e-6)).astype(jnp.int32)


_SQUARES = AttentionStatistics(OfGroupMean(SumOfSquares()))
