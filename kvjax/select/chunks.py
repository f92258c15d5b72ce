"""Whole runs of consecutive tokens stay or go, the same for every head of a layer (ChunkKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.kernels.select_top import select_top
from kvjax.order import places
from kvjax.ranges import Share, Size
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


def chunk_scores(u: Float32[Array, "*b h n"], valid: Bool[Array, "*b h n"], size: int) -> Float32[Array, "*b m"]:
    """Mean over a chunk's tokens of Σ_h u, a partial chunk over its own; -inf where a chunk has none."""
    e, there = jnp.where(valid, u, 0.0).sum(-2), valid.any(-2)
    e, there = (jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, -x.shape[-1] % size),)) for x in (e, there))
    e, there = (x.reshape(*x.shape[:-1], -1, size).sum(-1) for x in (e, there))
    return jnp.where(there > 0, e / jnp.maximum(there, 1), -jnp.inf)


def rank(scores: Float32[Array, "*b m"]) -> Int32[Array, "*b m"]:
    """How many chunks go before each; equal scores: the lower chunk goes first."""
    return places(jnp.argsort(-scores, -1, stable=True))


@struct.dataclass
class Chunks(Selector):
    """The best max(1, int(m · share)) of a layer's m chunks of `size` consecutive slots, a trailing partial one included.

    Args:
        size: tokens of a chunk. Fewer slots than that are ranked one by one.
        share: part of the chunks kept; None: the budget over the slots held. All heads of a layer keep the mean of their budgets,
            of which none counts above what is held.
        whole: whether only whole chunks stay, which can leave less than the budget or up to a chunk more; if not, chunks are taken
            by falling score until the budget is full, the last one from its start.

    Whole chunks need `Every(k, grows=True)` while decoding. Slots are in position order.
    Source: ChunkKV, arXiv 2502.00299, section 3. Differs: each row keeps chunks of its own (the release takes the first row's for a
    whole batch).
    """

    exact: ClassVar[bool] = False
    size: Size = struct.field(pytree_node=False, default=20)
    share: Share = None
    whole: bool = struct.field(pytree_node=False, default=True)

    @property
    def unbounded(self) -> bool:
        return self.whole

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        del budget
        return jnp.zeros_like(view.valid)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        n = ranking.valid.any(2).sum(-1)
        b = jnp.minimum(budget, n[..., None]).sum(-1) // budget.shape[-1]
        place = rank(chunk_scores(ranking.scores, ranking.valid, self.size))
        slot = jnp.arange(ranking.valid.shape[-1], dtype=jnp.int32)
        mine = jnp.take(place, slot // self.size, axis=-1)
        keep = self._whole(mine, n, b) if self.whole else self._filled(place, mine, slot, n, b)
        single = select_top(keys(ranking), jnp.maximum(budget, 1))
        return ranking.valid & jnp.where((n < self.size)[..., None, None], single, keep[:, :, None])

    def _whole(self, mine: Int32[Array, "l b n"], n: Int32[Array, "l b"], b: Int32[Array, "l b"]) -> Bool[Array, "l b n"]:
        share = b / jnp.maximum(n, 1) if self.share is None else self.share
        chunks = -(-n // self.size)
        return mine < jnp.maximum(jnp.floor(chunks * share * (1 + 1e-6)), 1)[..., None]

    def _filled(self, place, mine, slot, n, b) -> Bool[Array, "l b n"]:
        first = jnp.arange(place.shape[-1], dtype=jnp.int32) * self.size
        tokens = jnp.clip(n[..., None] - first, 0, self.size)
        before = (jnp.where(place[..., None, :] < place[..., None], tokens[..., None, :], 0)).sum(-1)
        return jnp.take(before, slot // self.size, axis=-1) + slot % self.size < jnp.maximum(b, 1)[..., None]
