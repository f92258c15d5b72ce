"""Budgets by the role a head plays: some keep the whole prompt, the rest share what is left (HeteroCache)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Integer

from kvjax.allocate.exact import exact_alloc
from kvjax.allocate.uniform import held
from kvjax.protocols import Decoder
from kvjax.stage import Allocator
from kvjax.types import Function, Number, Table, table
from kvjax.view import Ranking

#: Prompts this short are not refused: a share that is enough becomes, as whole slots, one that is not.
_SHORT = 16


def base_length(
    mean_budget: Integer[Array, "*b"], full: Integer[Array, "*b"], *, heads: Number, compressed: Number
) -> Int32[Array, "*b"]:
    """L_base = floor((mean_budget·N - slots of the full heads) / |C|), at least 0; integers of 64 bits.

    Args:
        mean_budget: mean slots per head.   full: slots of all full heads.   heads: N.   compressed: |C|.
    """
    with jax.enable_x64(True):
        def whole(x):
            return lax.convert_element_type(jnp.asarray(x), jnp.int64)

        left = whole(mean_budget) * whole(heads) - whole(full)
        return lax.convert_element_type(jnp.maximum(left // jnp.maximum(whole(compressed), 1), 0), jnp.int32)


def floors(ratio: Float[Array, " m"], base: Int32[Array, " b"], n: Int32[Array, " b"]) -> Int32[Array, "b m"]:
    """min(n, floor(L_base r)), at least 1; float64, floor(x + 1e-9)."""
    with jax.enable_x64(True):
        def f64(x):
            return lax.convert_element_type(x, jnp.float64)

        y = jnp.clip(jnp.floor(f64(ratio) * f64(base)[:, None] + 1e-9), 1.0, f64(n)[:, None])
        return lax.convert_element_type(y, jnp.int32)


@struct.dataclass
class ExactTotal:
    """Near L_base r_h within 1 .. n, and Σ_C L_h = L_base·|C|: what a head cannot use goes to the others."""

    def __call__(
        self, ratio: Float[Array, " m"], full: Bool[Array, " m"], base: Int32[Array, " b"], n: Int32[Array, " b"]
    ) -> Int32[Array, "b m"]:
        most = jnp.broadcast_to(n[:, None], (n.shape[0], ratio.shape[0]))
        total = n * full.sum() + base * (~full).sum()
        return exact_alloc(jnp.where(full, 1.0, ratio)[None], total, jnp.where(full, most, 1), most)


@struct.dataclass
class Floor:
    """min(n, floor(L_base r_h)), as the released code: what clipping and rounding leave over is not used.

    At least 1; where the ones so given would exceed L_base·|C|, the budgets are those of `ExactTotal`.
    """

    def __call__(
        self, ratio: Float[Array, " m"], full: Bool[Array, " m"], base: Int32[Array, " b"], n: Int32[Array, " b"]
    ) -> Int32[Array, "b m"]:
        y = jnp.where(full, n[:, None], floors(ratio, base, n))
        over = jnp.where(full, 0, y - base[:, None]).sum(-1) > 0
        return jnp.where(over[:, None], ExactTotal()(ratio, full, base, n), y)


def role_budgets(
    ratio: Float[Array, "l h"], mean_budget: Int32[Array, " b"], n: Int32[Array, " b"], *, rounding: Function
) -> Int32[Array, "l b h"]:
    """n slots where r < 0; the other heads are rounded together, in the order of layers and heads."""
    flat = ratio.reshape(-1)
    full, n = flat < 0, jnp.maximum(n, 1)
    base = base_length(mean_budget, n * full.sum(), heads=flat.size, compressed=(~full).sum())
    return rounding(flat, full, base, n).reshape(-1, *ratio.shape).transpose(1, 0, 2)


@struct.dataclass
class RoleBudgets(Allocator):
    """n slots for every full head, L_h ∝ r_h for the compressed ones: |F|·n + Σ L_h <= mean_budget·N.

    Args:
        ratio: float32 [L, H], r_h of the compressed heads (mean 1), negative for full heads.
        rounding: Floor(), as the released code, or ExactTotal().
        origin: which model and calibration `ratio` came from; two allocators with one origin are equal.

    `mean_budget` is a whole number of slots, so L_base can be below that of a fractional share by N/|C| at most. One that reaches
    the prompt's length keeps everything, which the released code does not (there, heads with r < 1 stay truncated).
    Where nothing is left for them (prompts of at most 16 tokens) the compressed heads get 1 slot each, beyond the total.
    Raises (from `check`): ValueError for a table of another model, or a total that the full heads of a longer prompt use up.
    Source: HeteroCache, arXiv 2601.13684, equations 7 and 8, with the lengths of the released code.
    """

    exact: ClassVar[bool] = False
    by_layer: ClassVar[bool] = True
    ratio: Table = table()
    rounding: Function = Floor()
    origin: str = struct.field(pytree_node=False, default="")

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        ratio = np.asarray(self.ratio)
        if ratio.shape != (model.layers, model.heads) or ratio.dtype.kind != "f":
            raise ValueError(
                f"RoleBudgets wants one float a KV head, [{model.layers}, {model.heads}]; got {ratio.dtype} {ratio.shape}: "
                "use the artefact of this model, or calibrate it"
            )
        full, heads = int((ratio < 0).sum()), ratio.size
        if _SHORT < length and mean_budget < length and mean_budget * heads <= full * length:
            least = full * length // heads + 1
            raise ValueError(
                f"{full} of {heads} KV heads keep the whole prompt of {length} tokens: a mean of {mean_budget} slots leaves "
                f"nothing for the others; the smallest feasible budget is {least} slots (a share above {full}/{heads} = "
                f"{full / heads:.3f})"
            )

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        budget = role_budgets(jnp.asarray(self.ratio), mean_budget, n.max((0, 2)), rounding=self.rounding)
        return jnp.minimum(ranking.own(budget), n)
