"""The mean attention of tokens, and how steady it is; what is unsteady is spared (RoCo)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.evidence import AttentionStatistics, ColumnSums, Evidence, Need, OfGroupMean
from kvjax.evidence.reduce import SumOfSquares
from kvjax.protocols import Decoder
from kvjax.ranges import Count, Share
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


def mean_and_deviation(s1: Scores, s2: Scores, seen: Int32[Array, "b h n"]) -> tuple[Scores, Scores]:
    """(μ, σ) from sums of a and a² over `seen` rows: μ = s1 / c, σ = sqrt(max(s2 / c - μ², 0))."""
    c = jnp.maximum(seen, 1).astype(jnp.float32)
    mu = s1 / c
    return mu, jnp.sqrt(jnp.maximum(s2 / c - mu * mu, 0.0))


@struct.dataclass
class Sums:
    """Σ a and Σ a² of each slot, a the group's mean attention, and 1 where the slot is the prompt's and pinned."""

    s1: Float32[Array, "*x"]
    s2: Float32[Array, "*x"]
    pinned: Float32[Array, "*x"]


@struct.dataclass
class Steadiness:
    """How steady slots are, and how many of them compete by their means: at a budget b, most - floor(share (b - pinned)).

    Attributes:
        deviation: σ; inf where pinned.   free: slots that may compete.
        most, pinned, share: by head.
    """

    deviation: Float32[Array, "*x n"]
    free: Bool[Array, "*x n"]
    most: Int32[Array, "*x"]
    pinned: Int32[Array, "*x"]
    share: Float32[Array, "*x"]


@struct.dataclass
class SteadyMean(Scorer):
    """u = μ, the mean attention; its second ranking is the `Steadiness`, by which `SparedFirst` spares the unsteady.

    Of S slots, sinks apart, S - 1 - floor(share b) are feasible at a budget of b: those of least σ. The share is `recent` while
    decoding and `prompt_recent` for a prompt, which is cut in one go.

    Args:
        recent, prompt_recent: share of the budget that is spared, the tail included.
        tail: last tokens that are never feasible; protect them, too.   sinks: first tokens that are never feasible.
        pin_prompt: whether the prompt has no statistics and stays; the budget is then prompt and rest.

    Raises (from `check`): ValueError for a budget below a pinned prompt's length.

    Source: RoCo, arXiv 2402.06262, section 3; shares, and the group mean before anything is summed, as in the release.
    """

    gives_second: ClassVar[type | None] = Steadiness

    recent: Share = 0.3
    prompt_recent: Share = 0.1
    tail: Count = 10
    sinks: Count = 0
    pin_prompt: bool = struct.field(pytree_node=False, default=False)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ColumnSums(), _SQUARES})

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if self.pin_prompt and mean_budget < length:
            raise ValueError(
                f"SteadyMean(pin_prompt=True) keeps the {length} tokens of a prompt whole: give a budget of slots for them and for "
                f"the tokens generated, together; got {mean_budget}"
            )

    def init(self, shape: tuple[int, int, int]) -> Sums:
        zeros = jnp.zeros(shape, jnp.float32)
        return Sums(s1=zeros, s2=zeros, pinned=zeros)

    def observe(self, view: LayerView, evidence: Evidence) -> Sums:
        old = view.state
        if self.pin_prompt and view.ids is not None:
            return old.replace(pinned=view.valid.astype(jnp.float32))
        return old.replace(s1=old.s1 + evidence.column_sums(), s2=old.s2 + evidence.of(_SQUARES)[:, :, 0])

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        mu, _ = self._moments(view, evidence)
        return jnp.where(view.state.pinned > 0, jnp.inf, mu)

    def second(self, view: LayerView, evidence: Evidence, scores: Scores) -> Steadiness:
        del scores
        _, sd = self._moments(view, evidence)
        pinned, first = view.valid & (view.state.pinned > 0), view.pos < self.sinks
        loose = view.valid & ~pinned & ~first
        most = loose.sum(-1, dtype=jnp.int32) - 1
        share = self.prompt_recent if view.since is None else self.recent
        return Steadiness(
            deviation=jnp.where(pinned, jnp.inf, sd),
            free=loose & (view.pos < evidence.length[:, None, None] - self.tail),
            most=most,
            pinned=pinned.sum(-1, dtype=jnp.int32),
            share=jnp.full(most.shape, share, jnp.float32),
        )

    def _moments(self, view: LayerView, evidence: Evidence) -> tuple[Scores, Scores]:
        return mean_and_deviation(view.state.s1, view.state.s2, evidence.length[:, None, None] - view.pos)


_SQUARES = AttentionStatistics(OfGroupMean(SumOfSquares()))
