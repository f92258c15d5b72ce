"""Keys against the one direction that a head's queries share, a group's mean of them (Q-Filters)."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float32

from kvjax.evidence import Evidence, Need
from kvjax.evidence.query_spread import QuerySpread, Spread
from kvjax.protocols import Decoder
from kvjax.stage import Scorer
from kvjax.types import Keys, Layer, Scores, Table, table
from kvjax.view import LayerView


def query_direction(spread: Spread) -> Float32[Array, "b h d"]:
    """mean_g f, f the leading right singular vector of a query head's queries, turned so that Σ f · q <= 0."""
    f = jnp.linalg.eigh(spread.outer)[1][..., -1]
    towards = (f * spread.total).sum(-1, keepdims=True) > 0
    return jnp.where(towards, -f, f).mean(2)


def against(k: Keys, f: Float[Array, "*b h d"]) -> Scores:
    """u_j = -f · k_j, for rotated keys."""
    return -jnp.einsum("...hd,bhnd->bhn", f.astype(jnp.float32), k.astype(jnp.float32), precision="highest")


@struct.dataclass
class QueryFilter(Scorer):
    """u = -f · k with a filter for each KV head, from a calibration.

    Args:
        filters: float [L, H, d].   origin: which model and calibration they came from; two scorers with one origin are equal.

    Source: Q-Filters, arXiv 2503.02812, section 3.
    """

    filters: Table = table()
    origin: str = struct.field(pytree_node=False, default="")

    def at(self, layer: Layer) -> "QueryFilter":
        return self.replace(filters=jnp.asarray(self.filters)[layer])

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        wanted, found = (model.layers, model.heads, model.head_dim), np.shape(self.filters)
        if found != wanted:
            raise ValueError(f"QueryFilter wants filters [layers, KV heads, head dimension] = {list(wanted)}; got {list(found)}")

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return against(view.k, self.filters)


@struct.dataclass
class OwnQueryFilter(Scorer):
    """u = -f · k with the direction of the queries seen so far: nothing has to be calibrated."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({QuerySpread()})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        return against(view.k, query_direction(evidence.of(QuerySpread())))
