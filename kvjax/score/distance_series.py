"""Attention to come as a series in the distance, from where queries gather before rotation (TriAttention)."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float32, Int32

from kvjax.evidence import Evidence, Need
from kvjax.evidence.query_pairs import QueryPairs, pair_norms
from kvjax.protocols import Decoder, Rope
from kvjax.score.heads import GroupMax, over_heads
from kvjax.stage import Scorer
from kvjax.types import Function, Keys, Layer, Mask, Scores, Table, later_table
from kvjax.view import LayerView

#: Distances ahead: 1, 2, 4, ..., 65536.
OFFSETS = tuple(2**i for i in range(17))


def ahead(
    mu: Float[Array, "b h g d"], k: Keys, *, rope: Rope | None, at: Int32[Array, " b"], offsets: tuple[int, ...], largest: bool
) -> Float32[Array, "b h g n"]:
    """Mean, or maximum, over the offsets δ of (mu rotated to at + δ) · k, for rotated keys.

    The mean is taken of the rotations, which are linear. Angles of the offsets are exact.
    """
    cos, sin = (x[:, None, None] for x in rope.cos_sin(at))
    now = rope.rotate(mu.astype(jnp.float32), cos, sin)
    angle = np.multiply.outer(np.asarray(offsets, np.float64), np.asarray(rope.frequencies, np.float64))
    c, s = np.cos(angle), np.sin(angle)
    turns = zip(c, s, strict=True) if largest else [(c.mean(0), s.mean(0))]
    turned = [rope.rotate(now, jnp.asarray(c, jnp.float32), jnp.asarray(s, jnp.float32)) for c, s in turns]
    waves = [jnp.einsum("bhgd,bhnd->bhgn", q, k.astype(jnp.float32), precision="highest") for q in turned]
    return jnp.stack(waves).max(0)


def beside(mu: Float[Array, "b h g d"], m: Float[Array, "b h g half"], k: Keys, *, corrected: bool) -> Float32[Array, "b h g n"]:
    """Σ_f (m_f - |mu_f|) |k_f|: what queries off their mean add; m_f |k_f| where not corrected."""
    spread = m - pair_norms(mu) if corrected else m
    return jnp.einsum("bhgf,bhnf->bhgn", spread, pair_norms(k), precision="highest")


def standardised(u: Float32[Array, "b h g n"], among: Mask) -> Float32[Array, "b h g n"]:
    """z-score over some tokens of each query head; 0 for the others."""
    there, count = among[:, :, None], jnp.maximum(among.sum(-1), 1)[:, :, None, None]
    off = jnp.where(there, u - jnp.where(there, u, 0.0).sum(-1, keepdims=True) / count, 0.0)
    return off / jnp.sqrt(jnp.maximum((off * off).sum(-1, keepdims=True) / count, 1e-30))


@struct.dataclass
class OwnDistanceSeries(Scorer):
    """u = heads(`ahead` + `beside`) with mu and m of the queries seen so far: nothing has to be calibrated.

    Args:
        heads: GroupMax(), or AllMax() for one set of tokens for all heads of a layer.
        offsets: distances ahead of the token to come, as in the release.   largest: whether the largest counts, not the mean.
        series, corrected: whether the first term counts, and whether |mu| is taken off the second.
        z: whether each query head's scores are standardised first.
        pinned: whether the prompt stays (`PromptFirst`), so that while decoding only decoded tokens are standardised.

    Source: TriAttention, arXiv 2604.04921, section 3. A rotary attention scale enters squared, as it does in attention.
    """

    heads: Function = GroupMax()
    offsets: tuple[int, ...] = struct.field(pytree_node=False, default=OFFSETS)
    largest: bool = struct.field(pytree_node=False, default=False)
    series: bool = struct.field(pytree_node=False, default=True)
    corrected: bool = struct.field(pytree_node=False, default=True)
    z: bool = struct.field(pytree_node=False, default=False)
    pinned: bool = struct.field(pytree_node=False, default=False)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({QueryPairs()})

    def statistics(self, evidence: Evidence) -> tuple[Float32[Array, "b h g d"], Float32[Array, "b h g half"]]:
        """(mu, m) of this layer."""
        return evidence.of(QueryPairs()).means()

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        (mu, m), rope = self.statistics(evidence), evidence.rope
        u = beside(mu, m, view.k, corrected=self.corrected) * rope.factor
        if self.series:
            u = u + ahead(mu, view.k, rope=rope, at=view.length, offsets=self.offsets, largest=self.largest)
        return over_heads(self.heads, standardised(u, self._competing(view)) if self.z else u, view)

    def _competing(self, view: LayerView) -> Mask:
        """The tokens of which some may go."""
        decoded = view.since is not None and self.pinned
        return view.valid & (view.pos >= view.prompt[:, None, None]) if decoded else view.valid


@struct.dataclass
class DistanceSeries(OwnDistanceSeries):
    """`OwnDistanceSeries` with mu and m from a calibration (`kvjax.calibrate.query_pairs`).

    Args:
        mean: float [L, H, G, d].   norms: float [L, H, G, d/2].   origin: what they came from; equal origins are equal scorers.
    """

    mean: Table = later_table()
    norms: Table = later_table()
    origin: str = struct.field(pytree_node=False, default="")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset()

    def at(self, layer: Layer) -> "DistanceSeries":
        return self.replace(mean=jnp.asarray(self.mean)[layer], norms=jnp.asarray(self.norms)[layer])

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        wanted, found = (model.layers, model.heads, model.groups, model.head_dim), np.shape(self.mean)
        if found != wanted:
            raise ValueError(f"DistanceSeries wants mean queries [layers, KV heads, groups, d] = {list(wanted)}; got {list(found)}")

    def statistics(self, evidence: Evidence) -> tuple[Float32[Array, "b h g d"], Float32[Array, "b h g half"]]:
        return self.mean[None], self.norms[None]
