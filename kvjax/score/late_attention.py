"""What the rows behind a group of tokens attend to, the same for all heads of a layer (PyramidInfer)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.evidence import AttentionStatistics, Evidence, LateRows, Need, OfGroupMean
from kvjax.evidence.late_rows import recent_tokens
from kvjax.score.heads import AllMean, over_heads
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class Groups:
    """Which group a slot is in, 0 for the prompt, ascending; and whether the rows that judge the group have all been seen."""

    index: Int32[Array, "*x"]
    complete: Bool[Array, "*x"]


def groups(
    pos: Int32[Array, "b h n"], length: Int32[Array, " b"], prompt: Int32[Array, " b"], *, recent: Int32[Array, " b"], every: int
) -> Groups:
    """Decoded tokens in groups of `every`; one is complete where `recent` tokens follow it."""

    def of_row(x):
        return x[:, None, None]

    index = jnp.where(pos < of_row(prompt), 0, (pos - of_row(prompt)) // every + 1)
    return Groups(index=index, complete=index <= jnp.maximum(of_row((length - prompt - recent) // every), 0))


@struct.dataclass
class LateAttention(Scorer):
    """u_j = mean over all heads of `LateRows`: the last rows of the prompt, or the rows behind j's group.

    While decoding the heads are those that hold j. Its second ranking are the `Groups`.
    """

    gives_second: ClassVar[type | None] = Groups

    rows: LateRows = LateRows()

    @property
    def need(self) -> AttentionStatistics:
        return AttentionStatistics(OfGroupMean(self.rows))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.need})

    def init(self, shape: tuple[int, int, int]) -> Scores:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        return view.state + evidence.of(self.need)[:, :, 0]

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        u = jnp.where(view.valid, view.state, 0.0)
        return over_heads(AllMean(), u[:, :, None], view)

    def second(self, view: LayerView, evidence: Evidence, scores: Scores) -> Groups:
        del evidence, scores
        recent = recent_tokens(view.prompt, self.rows.share)
        return groups(view.pos, view.length, view.prompt, recent=recent, every=self.rows.every)
