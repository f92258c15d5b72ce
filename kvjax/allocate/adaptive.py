"""Budgets that follow the scores, head against head inside a layer (Ada-KV)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32, PyTree, UInt32

from kvjax.allocate.uniform import Uniform, held
from kvjax.budget import whole_share
from kvjax.evidence import Evidence, Need
from kvjax.kernels.select_top import select_top
from kvjax.protocols import Decoder
from kvjax.ranges import Share
from kvjax.rank_keys import keys
from kvjax.stage import Allocator
from kvjax.types import Layer
from kvjax.view import LayerView, Ranking


def flattened_counts(
    rank: UInt32[Array, "l b h n"], budget: Int32[Array, "l b h"], safe: Int32[Array, "l b h"]
) -> Int32[Array, "l b h"]:
    """How many of a layer's Σ_h budget best slots fall in each head, every head's best `safe` slots forced in."""
    forced = jnp.where(select_top(rank, safe), jnp.uint32(0xFFFFFFFF), rank)
    flat = forced.reshape(*rank.shape[:2], -1)
    return select_top(flat, budget.sum(-1)).reshape(rank.shape).sum(-1).astype(jnp.int32)


@struct.dataclass
class Adaptive(Allocator):
    """b_lh = the number of head h's slots among the layer's Σ_h b_lh best, at least int(alpha · b) a head.

    Args:
        alpha: share of the mean budget every head is sure of (0.2 for grouped queries; 1 gives uniform heads).
        layers: the allocator that says what a layer has to share out (Uniform, Pyramid, ...).

    The safeguard is the forced form (top int(alpha b) of each head, then the flattened rest), which keeps the total exact; the
    release rounds a mix of the two counts and can lose slots. Protected slots take part and always win.
    Source: Ada-KV, arXiv 2407.11550, section 4.
    """

    alpha: Share = 0.2
    layers: Allocator = Uniform()

    @property
    def by_layer(self) -> bool:
        """Heads are ranked inside their layer."""
        return self.layers.by_layer

    @property
    def needs(self) -> frozenset[Need]:
        return self.layers.needs

    def at(self, layer: Layer) -> "Adaptive":
        return self.replace(layers=self.layers.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.layers.check(model, length, mean_budget)

    def measure(self, view: LayerView, evidence: Evidence) -> PyTree:
        return self.layers.measure(view, evidence)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        budget, most = self.layers(ranking, mean_budget), held(ranking)
        safe = whole_share(budget, self.alpha)
        return flattened_counts(keys(ranking), budget, jnp.clip(safe, 1, jnp.minimum(budget, most)))
