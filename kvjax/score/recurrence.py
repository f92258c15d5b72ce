"""Whether a token is due to be looked at again, by how often it was so far (LazyEviction)."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import AttentionStatistics, Evidence, Need, OfGroupMax
from kvjax.evidence.reduce import HitGaps, Hits
from kvjax.stage import Scorer
from kvjax.types import Number, Scores
from kvjax.view import LayerView

Steps = Int32[Array, "*x"]


def last_and_longest(hits: Hits, start: Steps) -> tuple[Steps, Steps]:
    """(TS, MRI): the last hit, or the start, and the largest gap between hits, the start counted as one."""
    hit = hits.last >= 0
    first = jnp.where(hit, hits.first - start, 0)
    return jnp.where(hit, hits.last, start), jnp.maximum(first, hits.gap)


def importance(ts: Steps, mri: Steps, now: Steps, shift: Number = 0.0) -> Float32[Array, "*x"]:
    """I = 2 σ(-shift - (now - TS) / MRI) + 2 σ(1 - MRI); 0 where MRI = 0: the token was never hit."""
    period = jnp.maximum(mri, 1).astype(jnp.float32)
    due = jax.nn.sigmoid(-shift - (now - ts).astype(jnp.float32) / period)
    short = jax.nn.sigmoid(1.0 - period)
    return jnp.where(mri > 0, 2 * (due + short), 0.0)


@struct.dataclass
class Recurrence(Scorer):
    """u = I(TS, MRI): tokens whose own period says that they are due, and those of short periods.

    A hit is a query, of any head of the group, that gives the key at least alpha. Steps are positions, the prompt's included; a
    token starts one step before its own query, so that a hit by that query is a period of 1.

    Args:
        alpha: the attention from which on a query counts as a hit.
        shift: added to the periods since the last hit: 0 as printed, 1 in the release, where short periods count for more.

    Source: LazyEviction, arXiv 2506.15969, section 3; the second term (printed forms differ) and the start as in the release.
    """

    alpha: float = struct.field(pytree_node=False, default=1e-4)
    shift: Number = 0.0

    @property
    def _rows(self) -> AttentionStatistics:
        return AttentionStatistics(OfGroupMax(HitGaps(self.alpha)))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self._rows})

    def init(self, shape: tuple[int, int, int]) -> Hits:
        """First and last hit are kept as 1 + position, so that 0 is never."""
        zeros = jnp.zeros(shape, jnp.int32)
        return Hits(first=zeros, last=zeros, gap=zeros)

    def observe(self, view: LayerView, evidence: Evidence) -> Hits:
        new = jax.tree.map(lambda x: x[:, :, 0], evidence.of(self._rows))
        joined = HitGaps(self.alpha).join(_positions(view.state), new)
        return joined.replace(first=joined.first + 1, last=joined.last + 1)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        ts, mri = last_and_longest(_positions(view.state), view.pos - 1)
        return importance(ts, mri, jnp.broadcast_to(evidence.length[:, None, None] - 1, ts.shape), self.shift)


def _positions(stored: Hits) -> Hits:
    return stored.replace(first=stored.first - 1, last=stored.last - 1)
