"""A few dense slots that averages of evicted tokens live in, beside top and recent tokens (ZeroMerge)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.kernels.select_top import select_top
from kvjax.ranges import Share, Size
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


def tail_slots(budget: Int32[Array, "*b"], share: Number) -> Int32[Array, "*b"]:
    """max(2, int(b · share)), but at most b."""
    return jnp.minimum(jnp.maximum(jnp.floor(budget * share * (1 + 1e-6)).astype(jnp.int32), 2), budget)


def run_starts(rest: Bool[Array, "*b n"], runs: PyTree) -> Bool[Array, "*b n"]:
    """The first of each of `runs` consecutive runs of the slots in `rest`; the first count mod runs of them are one longer."""
    count, rank = rest.sum(-1, keepdims=True), jnp.cumsum(rest, -1) - 1
    runs = jnp.minimum(runs, count)
    short, longer = count // jnp.maximum(runs, 1), count % jnp.maximum(runs, 1)
    behind = rank - longer * (short + 1)
    start = jnp.where(behind < 0, rank % (short + 1) == 0, behind % jnp.maximum(short, 1) == 0)
    return rest & start


def dense_slots(view: LayerView, dense: int) -> Mask:
    """Slots with a bias; where there are none once the text goes on, the first `dense` ones. Slots are in position order."""
    held = jnp.zeros_like(view.valid) if view.bias is None else view.valid & (view.bias > 0)
    if view.since is None:
        return held
    return jnp.where(held.any(-1, keepdims=True), held, view.valid & (jnp.cumsum(view.valid, -1) <= dense))


@struct.dataclass
class DenseAndTop(Selector):
    """Of b slots `dense` stay for averages, the last max(2, int(b · tail_share)) tokens stay, the best others fill the rest.

    Of a prompt that does not fit, what is neither recent nor among the best is cut into `dense` runs, whose first slots stay; where
    it fits, the text's first `dense` slots are the dense ones. From then on these are the slots with a bias, which says how many
    tokens they hold.

    Source: ZeroMerge, arXiv 2503.10714, section 3, and its release.
    """

    dense: Size = struct.field(pytree_node=False, default=1)
    tail_share: Share = 0.1

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        oldest = view.length[:, None] - tail_slots(budget, self.tail_share)
        return view.valid & (view.pos >= oldest[..., None]) | dense_slots(view, self.dense)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        b = jnp.maximum(budget, 1)
        newest = jnp.where(ranking.valid, ranking.pos, -1).max(-1, keepdims=True)
        recent = ranking.pos > newest - tail_slots(b, self.tail_share)[..., None]
        ready = (ranking.protected & ~recent).any(-1, keepdims=True)
        order, over = keys(ranking), ranking.valid.sum(-1) > b
        single = select_top(order, jnp.maximum(b - self.dense, 0))
        starting = single | run_starts(ranking.valid & ~single, jnp.minimum(self.dense, b)[..., None])
        return jnp.where(ready | ~over[..., None], select_top(order, b), starting)
