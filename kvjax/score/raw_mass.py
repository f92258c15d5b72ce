"""Attention received, and what the last queries' unnormalised exponentials say of each slot (KeepKV)."""

import math

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.evidence import AttentionStatistics, ColumnSums, Evidence, Need, WindowQueries
from kvjax.evidence.by_position import SumOfPositions
from kvjax.score.heads import GroupMean
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Number, Positions, Scores
from kvjax.view import LayerView

#: Logits are held inside ±80: their exponentials and sums of them are float32 numbers above 0.
_MOST = 80.0
_RISING = AttentionStatistics(SumOfPositions())


@struct.dataclass
class Masses:
    """By slot: attention received, and mean_g exp(z) of the last w queries, oldest first; 0 where a query could not see it."""

    total: Float32[Array, "*x"]
    recent: Float32[Array, "*x w"]


def exponentials(q: Float[Array, "b h g w d"], k: Keys, sees: Bool[Array, "b h w n"]) -> Float32[Array, "b h n w"]:
    """mean_g exp(q k / sqrt(d)), 0 where a query sees no slot."""
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, k, preferred_element_type=jnp.float32, precision="highest") / math.sqrt(q.shape[-1])
    e = jnp.exp(jnp.clip(z, -_MOST, _MOST)).mean(2)
    return jnp.swapaxes(jnp.where(sees, e, 0.0), 2, 3)


def visible(pos: Positions, valid: Mask, length: Int32[Array, " b"], w: int) -> Bool[Array, "b h w n"]:
    """Which slots each of the last w queries of a text of `length` tokens sees; a query before the text sees none."""
    at = (length[:, None] - w + jnp.arange(w, dtype=jnp.int32))[:, None, :, None]
    return valid[:, :, None] & (at >= 0) & (pos[:, :, None] <= at)


@struct.dataclass
class RawMass(Scorer):
    """u[j] = Σ_t w_t mean_g A[t, j]: w_t from 1 (the prompt's first row) linearly up to `newest` (its last), `newest` afterwards.

    It keeps exp(z) of the last `window` queries for `ByVotes`: 4 · window bytes a slot.

    Source: KeepKV, arXiv 2504.09936, section 3; group mean under grouped queries (the release serves none).
    """

    window: int = struct.field(pytree_node=False, default=8)
    newest: Number = 1.0

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ColumnSums(), _RISING, WindowQueries(self.window)})

    def init(self, shape: tuple[int, int, int]) -> Masses:
        return Masses(total=jnp.zeros(shape, jnp.float32), recent=jnp.zeros((*shape, self.window), jnp.float32))

    def observe(self, view: LayerView, evidence: Evidence) -> Masses:
        old, w = view.state, self.window
        seen = visible(view.pos, view.valid, evidence.length, w)
        fresh = exponentials(evidence.window_queries(w), view.k, seen)
        first = jnp.zeros_like(evidence.length) if view.since is None else view.since
        new = evidence.length - first
        at = jnp.arange(w, dtype=jnp.int32) + new[:, None]
        moved = jnp.take_along_axis(old.recent, jnp.clip(at, 0, w - 1)[:, None, None], -1)
        recent = jnp.where((at >= w)[:, None, None], fresh, moved)
        return Masses(total=old.total + self._received(view, evidence), recent=recent)

    def _received(self, view: LayerView, evidence: Evidence) -> Scores:
        plain = evidence.column_sums()
        if view.since is not None:
            return self.newest * plain
        last = jnp.maximum(evidence.length - 1, 1).astype(jnp.float32)[:, None, None]
        return plain + (self.newest - 1.0) * GroupMean()(evidence.of(_RISING)) / last

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return view.state.total
