"""Budgets that follow a weight measured for each layer offline (CompressKV)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int32

from kvjax.allocate.repair import RoundRobin
from kvjax.allocate.uniform import held
from kvjax.protocols import Decoder
from kvjax.ranges import Count, NonNegative
from kvjax.stage import Allocator
from kvjax.types import Function, Number, Table, table
from kvjax.view import Ranking


def shares(w: Float[Array, " l"]) -> Float[Array, " l"]:
    """Weights that sum to 1: as they are if they do to 1e-6, else renormalised; uniform if all are zero or one is not finite."""
    total = w.sum()
    usable = jnp.isfinite(w).all() & (total > 0)
    scaled = jnp.where(jnp.abs(total - 1.0) > 1e-6, w / jnp.where(usable, total, 1.0), w)
    return jnp.where(usable, scaled, 1.0 / w.shape[0])


def layer_budgets(
    e: Float[Array, " l"], mean: Int32[Array, " b"], n: Int32[Array, " b"], *, floor: Number, cap: Number, repair: Function
) -> Int32[Array, "b l"]:
    """B_l = clip(m + round(e_l (B·L - m·L)), m, M), repaired to Σ B_l = B·L exactly; float64, halves to even.

    Args:
        e: weights, summing to 1.   mean: B, slots of a layer on average.   n: slots there are.
        floor: m.   cap: M = max(cap·B, m).   repair: RoundRobin() or ArgMax().

    m and M are bounded by n, so that no slot is given to a layer that cannot fill it.
    """
    with jax.enable_x64(True):
        e, base, layers = shares(e.astype(jnp.float64)), mean[:, None].astype(jnp.float64), e.shape[0]
        n = n[:, None].astype(jnp.float64)
        low = jnp.minimum(jnp.asarray(floor, jnp.float64), n)
        high = jnp.minimum(jnp.maximum(jnp.floor(jnp.asarray(cap, jnp.float64) * base + 1e-9), low), n)
        wish = jnp.clip(low + jnp.round(e * (base * layers - low * layers)), low, high)

        def whole(x):
            return jnp.broadcast_to(x, wish.shape).astype(jnp.int32)

        return repair(whole(wish), e, (mean * layers).astype(jnp.int32), whole(low), whole(high))


@struct.dataclass
class LayerWeights(Allocator):
    """B_l = clip(m + round(e_l (B·L - m·L)), m, cap·B), then repaired to the exact total; every KV head of a layer gets B_l.

    Args:
        weights: float32 [L], a layer's share of what is above the floor; renormalised if they do not sum to 1.
        floor: m, slots every layer is sure of.
        cap: most slots of a layer, as a multiple of the mean (never below the floor).
        repair: RoundRobin(), as the released code, or ArgMax(), as the paper's algorithm; they differ by more than one unit only
            where a layer meets its bound.
        origin: which model and calibration `weights` came from; two allocators with one origin are equal.

    Raises (from `check`): ValueError for weights of another model, or a mean below the floor.
    Source: CompressKV, arXiv 2508.02401, section 3.3, eq. 10 to 12, Algorithm 1. Differs: no layer gets more than the prompt has,
    and what it would have got goes to the others (the release leaves it unused).
    """

    by_layer: ClassVar[bool] = True
    weights: Table = table()
    floor: Count = 32
    cap: NonNegative = 3
    repair: Function = RoundRobin()
    origin: str = struct.field(pytree_node=False, default="")

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        weights = np.asarray(self.weights)
        if weights.shape != (model.layers,) or weights.dtype.kind != "f":
            raise ValueError(
                f"LayerWeights wants one float a layer, [{model.layers}]; got {weights.dtype} {weights.shape}: "
                "use the artefact of this model, or calibrate it"
            )
        if weights.min() < 0:
            raise ValueError(f"layer weights must not be negative; got {weights.min()} in layer {weights.argmin()}")
        if self.floor > mean_budget and mean_budget < length:
            raise ValueError(
                f"every layer is sure of {self.floor} slots, but the budget is {mean_budget} on average "
                f"for a prompt of {length} tokens: "
                f"ask for a budget of at least {self.floor}, or lower the floor"
            )

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        budget = layer_budgets(
            jnp.asarray(self.weights), mean_budget, n.max((0, 2)), floor=self.floor, cap=self.cap, repair=self.repair
        )
        return jnp.minimum(ranking.own(budget.T)[..., None], n)
