"""The question's attention on the context, levelled by how much each row could see (FINCH)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.ranges import Size
from kvjax.score.window_rows import Real, Rows, real_rows, window_rows
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


def levelled(p: Rows, real: Real, length: Int32[Array, " b"]) -> Float32[Array, "b h n"]:
    """u_j = mean_g mean_i p_ij (n - w + i): row i of the last w times the keys before its own, over the rows that are real."""
    w = p.shape[3]
    before = (length[:, None] - w + jnp.arange(w, dtype=jnp.int32)).astype(jnp.float32)
    weight = jnp.where(real, before, 0.0) / jnp.maximum(real.sum(-1, keepdims=True), 1)
    return jnp.einsum("bhgwn,bw->bhgn", p, weight).mean(2)


@struct.dataclass
class LevelledWindow(Scorer):
    """`levelled` attention of the last `window` queries, the question; its own tokens must be protected.

    Args:
        window: tokens of the question.

    Source: FINCH, arXiv 2408.00167, section 3.
    """

    window: Size = struct.field(pytree_node=False, default=32)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        q = evidence.window_queries(self.window)
        p = window_rows(q, view.k, pos=view.pos, valid=view.valid, length=evidence.length, window=evidence.window)
        return levelled(p, real_rows(evidence.length, self.window), evidence.length)
