"""How seldom a token got less than an even share of attention lately (Scissorhands)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32, UInt32

from kvjax.evidence import AttentionStatistics, Evidence, LowRows, Need, OfGroupMean
from kvjax.evidence.low_rows import LowBits, count_bits
from kvjax.order import places
from kvjax.ranges import Size
from kvjax.stage import Scorer
from kvjax.types import Mask, Positions, Scores
from kvjax.view import LayerView


def rank_low(counts: Int32[Array, "b h n"], pos: Positions, valid: Mask) -> Scores:
    """Ranks by falling count, of equal counts the oldest first: the highest rank goes last.

    Slots without a token come behind all others, so that no rank of a token depends on how many there are.
    """
    return places(jnp.lexsort((pos, -counts, ~valid), axis=-1)).astype(jnp.float32)


@struct.dataclass
class SeldomLow(Scorer):
    """u orders slots by -#{q : a_q < 1 / S_q} over the last `window` queries, a the group's mean, S_q the keys query q sees.

    Queries from before a token do not count for it: young tokens look better. Of equal counts the oldest goes first. The state is
    a bit for each of the last queries.

    Source: Scissorhands, arXiv 2305.17118, algorithm 2 (no official code).
    """

    window: Size = struct.field(pytree_node=False, default=416)

    @property
    def _rows(self) -> AttentionStatistics:
        return AttentionStatistics(OfGroupMean(LowRows(self.window)))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self._rows})

    def init(self, shape: tuple[int, int, int]) -> UInt32[Array, "b h n w"]:
        return jnp.zeros((*shape, self.window // 32), jnp.uint32)

    def observe(self, view: LayerView, evidence: Evidence) -> UInt32[Array, "b h n w"]:
        new = evidence.of(self._rows)
        old = LowBits(low=view.state[:, :, None], read=jnp.zeros_like(new.read))
        return LowRows(self.window).join(old, new).low[:, :, 0]

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return rank_low(count_bits(view.state), view.pos, view.valid)
