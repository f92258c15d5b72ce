"""How many slots of each layer stay in full precision, by the shape of its attention (ARKV)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.allocate.preference import entropy_and_variance
from kvjax.allocate.uniform import held
from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.ranges import Size
from kvjax.score.window_rows import before_window, real_rows, window_rows
from kvjax.stage import Allocator
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


def kurtosis(p: Float32[Array, "b h g w n"], real: Bool[Array, "b w"], before: Mask) -> Float32[Array, " b"]:
    """Ks = Σ m4 / max(m2, 1e-8)², moments of each column before the window over the real rows, divided by their number."""
    here = real[:, None, None, :, None]
    rows = jnp.maximum(real.sum(-1), 1).astype(jnp.float32)[:, None, None, None]
    mean = jnp.where(here, p, 0.0).sum(3) / rows
    off = jnp.where(here, p - mean[..., None, :], 0.0)
    m2, m4 = (off**2).sum(3) / rows, (off**4).sum(3) / rows
    return jnp.where(before[:, :, None], m4 / jnp.maximum(m2, 1e-8) ** 2, 0.0).sum((1, 2, 3))


def log_quality(
    parts: tuple[Float32[Array, " b"], Float32[Array, " b"], Float32[Array, " b"]], t: tuple[Number, Number, Number]
) -> Float32[Array, " b"]:
    """ln OQ = ln(E) / t1 + ln(V) / t2 + ln(K) / t3."""
    tiny = jnp.finfo(jnp.float32).tiny
    return sum(jnp.log(jnp.maximum(x, tiny)) / y for x, y in zip(parts, t, strict=True))


def origin_slots(log_oq: Float32[Array, "l b"], room: Number, most: Int32[Array, "l b"]) -> Int32[Array, "l b"]:
    """round(OQ_l / max OQ · (C - W)) in 0 .. min(C - W, n - W); halves to the even number."""
    share = jnp.exp(log_oq - log_oq.max(0))
    return jnp.clip(jnp.round(share * room).astype(jnp.int32), 0, jnp.minimum(room, most))


@struct.dataclass
class OriginShares(Allocator):
    """origin_l = round(OQ_l / max OQ · (C - W)), OQ = E^(1/t1) V^(1/t2) K^(1/t3) of the last W queries' attention; every KV head's.

    E is the entropy of these rows before the window, V their variance from query to query, K their kurtosis. It is no budget of
    what is held: a rule of tiers reads it.

    Args:
        budget: C, slots a head holds.   window: W.   t1, t2, t3: exponents' inverses.

    Source: ARKV, arXiv 2603.08727, and its release: the greatest OQ is that of all layers. Differs: one prompt at a time, where the
    release sums over a batch.
    """

    exact = False
    given = True
    budget: Number = 512
    window: Size = struct.field(pytree_node=False, default=32)
    t1: Number = 7.774
    t2: Number = 5.407
    t3: Number = 5.528

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def measure(self, view: LayerView, evidence: Evidence) -> Float32[Array, " b"]:
        q, length = evidence.window_queries(self.window), evidence.length
        p = window_rows(q, view.k, pos=view.pos, valid=view.valid, length=length, window=evidence.window)
        real, before = real_rows(length, self.window), before_window(view, length, self.window)
        parts = *entropy_and_variance(p, real, before), kurtosis(p, real, before)
        return log_quality(parts, (self.t1, self.t2, self.t3))

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        del mean_budget
        most = held(ranking).max(-1) - self.window
        origin = origin_slots(ranking.measured, jnp.maximum(self.budget - self.window, 0), most)
        return jnp.broadcast_to(origin[..., None], ranking.valid.shape[:3])
