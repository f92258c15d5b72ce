"""Layer budgets by how spread out and how changeable a layer's attention is (CAKE)."""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.allocate.spread import LargestRemainders
from kvjax.allocate.uniform import held
from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.ranges import Size
from kvjax.score.window_rows import before_window, mean_and_variance, real_rows, window_rows
from kvjax.stage import Allocator
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking

_TINY = float(jnp.finfo(jnp.float32).tiny)


def entropy_and_variance(
    p: Float32[Array, "b h g w n"], real: Bool[Array, "b w"], before: Mask
) -> tuple[Float32[Array, " b"], Float32[Array, " b"]]:
    """(Hs, Vs) of rows p over the columns before the window: -Σ p ln(p + 1e-10), and Σ of unbiased variances over the rows."""
    entropy = jnp.where(real[:, None, None, :, None] & before[:, :, None, None], -p * jnp.log(p + 1e-10), 0.0)
    variance = jnp.where(before[:, :, None], mean_and_variance(p, real)[1], 0.0)
    return entropy.sum((1, 2, 3, 4)), variance.sum((1, 2, 3))


def log_preference(
    entropy: Float32[Array, " b"], variance: Float32[Array, " b"], *, tau1: Number, tau2: Number
) -> Float32[Array, " b"]:
    """ln P = ln(Hs) / tau1 + ln(Vs) / tau2: exponents far from 1 would underflow."""
    return jnp.log(jnp.maximum(entropy, _TINY)) / tau1 + jnp.log(jnp.maximum(variance, _TINY)) / tau2


def cascaded(share: Number, w: Float[Array, "b l"], total: Int32[Array, " b"], most: Int32[Array, "b l"]) -> Int32[Array, "b l"]:
    """Shares over the layers seen so far, layer after layer; no layer gets back what it lost.

    A layer's best slots by its own scores, cut again and again, are those of its smallest budget.
    """
    at = jnp.arange(w.shape[-1])
    seen = at[:, None] >= at
    budgets = share(jnp.where(seen, w[:, None], 0), jnp.broadcast_to(total[:, None], (*total.shape, len(at))), most[:, None] * seen)
    return jnp.where(seen, budgets, most[:, None]).min(1)


@struct.dataclass
class LayerPreference(Allocator):
    """b_l = W + share of (b - W) L by P_l = Hs_l^(1/tau1) Vs_l^(1/tau2), at most n; the same for every KV head of a layer.

    Hs is the entropy of the last W queries' attention to the keys before them, Vs its unbiased variance over these queries.

    Args:
        window: W, protected slots every layer gets on top.   tau1, tau2: temperatures of entropy and variance.
        share: LargestRemainders(), whose total is exact, or ClipAndSpread(), the release's arithmetic.
        cascade: whether budgets are shared out layer after layer, as in the paper: a layer that lost slots never gets them back,
            and what that leaves over stays unused. Without, they are shared out once all layers have been seen.

    Source: CAKE, arXiv 2503.12491, preference scores and cascading cache management. Differs: one prompt at a time, where the
    release sums over a batch; a prompt is cut as soon as it is longer than b, not b + W.
    """

    window: Size = struct.field(pytree_node=False, default=32)
    tau1: Number = 1.0
    tau2: Number = 1.0
    share: Number = LargestRemainders()
    cascade: bool = struct.field(pytree_node=False, default=False)

    @property
    def exact(self) -> bool:
        return isinstance(self.share, LargestRemainders) and not self.cascade

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def measure(self, view: LayerView, evidence: Evidence) -> Float32[Array, " b"]:
        q, length = evidence.window_queries(self.window), evidence.length
        p = window_rows(q, view.k, pos=view.pos, valid=view.valid, length=length, window=evidence.window)
        found = entropy_and_variance(p, real_rows(length, self.window), before_window(view, length, self.window))
        return log_preference(*found, tau1=self.tau1, tau2=self.tau2)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        most = jnp.maximum(n.max(-1).T - self.window, 0)
        total = jnp.maximum(mean_budget - self.window, 0) * n.shape[0]
        with jax.enable_x64(True):
            log_p = lax.convert_element_type(ranking.measured, jnp.float64).T
            w = jnp.exp(log_p - log_p.max(-1, keepdims=True))
            older = cascaded(self.share, w, total, most) if self.cascade else self.share(w, total, most)
        budget = jnp.where(mean_budget <= self.window, mean_budget, self.window + older.T)
        return jnp.minimum(budget[..., None], n)
