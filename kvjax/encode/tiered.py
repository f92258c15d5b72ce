"""A storage of several tiers: every layer's slots lie in parts of the cache, each stored in its own way."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.encode.parted import Parted, Share, with_part
from kvjax.encode.stored import Stored
from kvjax.encode.tier_rule import TierRule
from kvjax.evidence import Need, union
from kvjax.join import joined
from kvjax.protocols import Cache, Decoder
from kvjax.types import Layer, Queries
from kvjax.view import Ranking


@struct.dataclass
class Tiered(Parted):
    """Slots in tiers, each with a storage of its own and ragged regions of its own; new tokens go to the first.

    A query attends to every tier by itself; the parts are joined by their log-sum-exp, as one softmax over all slots.

    Where the rule moves slots while decoding, it alone says what leaves the cache then: the policy's budget cuts the prompt.

    Args:
        stores: the storage of each tier, without windows; pages only where the rule moves whole pages there.
        rule: `kvjax.encode.tier_rule`: which tier a slot of the prompt is in, and what moves while decoding. Slots move to later
            tiers only: what has been coded is never coded anew into more bits.

    Raises:
        ValueError: a first tier with pages, windows, storages that differ in placement or positions, positions by rank, `InCache`,
            codes of several slots or of all heads where the rule moves slots one by one, or moves less than a page.
    """

    numbered: ClassVar[bool] = True
    stores: tuple[Stored, ...]
    rule: TierRule

    def __post_init__(self):
        if not (isinstance(self.stores, tuple) and all(isinstance(store, Stored) for store in self.stores)):
            return  # placeholders of a pytree transformation
        self.check_stores()
        if self.positions.ranked:
            raise ValueError(
                f"{self.positions!r} counts the slots before one, of which its tier holds some alone: use Absolute() or "
                "Rerotated(), or one storage, Stored()"
            )
        if any(store.stepwise for store in self.stores) or self.stores[0].page > 1:
            raise ValueError(f"tiers have no windows, and the first, which takes new tokens, no pages; got {self.stores!r}")
        for tier, store in enumerate(self.stores):
            self._check_moves(tier, store)

    def _check_moves(self, tier: int, store: Stored) -> None:
        """Raise ValueError for codes that a tier's slots cannot come to, or leave, as the rule moves them."""
        comes = self.rule.comes(tier)
        leaves = self.rule.moves and tier < self.rule.watched
        if (leaves or comes == 1) and not store.movable:
            raise ValueError(
                f"{type(self.rule).__name__} moves single slots to or from tier {tier} while decoding, whose codes are of several "
                f"slots or of all heads: store it in codes of single slots; got {store!r}"
            )
        if comes and comes % store.page:
            raise ValueError(f"{comes} slots come to tier {tier} at once, which are no whole pages of {store.page}; got {store!r}")

    @property
    def needs(self) -> frozenset[Need]:
        return union(self.rule.needs, *(store.needs for store in self.stores))

    @property
    def moves(self) -> bool:
        return self.rule.moves

    @property
    def evicts(self) -> bool:
        return self.rule.evicts

    @property
    def movable(self) -> bool:
        return self.rule.moves

    @property
    def stepwise(self) -> bool:
        return self.rule.moves

    @property
    def padded(self) -> bool:
        return self.rule.moves or any(store.padded for store in self.stores)

    @property
    def page(self) -> int:
        return int(np.lcm.reduce([store.page for store in self.stores]))

    def at(self, layer: Layer) -> "Tiered":
        return self.replace(stores=tuple(store.at(layer) for store in self.stores))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.rule.check(model, length, mean_budget)
        for store in self.stores:
            store.check(model, length, mean_budget)

    def divided(self, pre: object, decided: Sequence[PyTree]) -> list[Share]:
        tiers = [_tiers(self.rule, d.scores, d.keep, row.length) for d, row in zip(decided, pre.rows, strict=True)]
        shares = []
        for i, store in enumerate(self.stores):
            keep = [d.keep & (of_row == i) for d, of_row in zip(decided, tiers, strict=True)]
            cut = [d.replace(keep=k, stays=d.keep, count=k.sum(-1, dtype=jnp.int32)) for d, k in zip(decided, keep, strict=True)]
            scored = self.rule.moves and i < self.rule.watched
            shares.append(Share(pre=pre, decided=cut, store=store, scored=scored))
        return shares

    def of_parts(self, cache: Cache) -> list[Stored]:
        return list(self.stores)

    def takes(self, part: int) -> bool:
        return part == 0

    def room(self, cache: Cache, capacity: Int32[np.ndarray, "l b h"]) -> list[Int32[np.ndarray, "l b h"]]:
        lengths = [part.lengths for part in cache.parts]
        new = np.maximum(capacity - sum(lengths), 0)
        return [np.maximum(x, n) for x, n in zip(self.rule.room(lengths, new, np.asarray(cache.budget)), lengths, strict=True)]

    def fits(self, cache: Cache, d: int) -> bool:
        """Whether the cache's parts are these tiers."""
        pairs = list(zip(self.stores, cache.parts, strict=False))
        return len(cache.parts) == len(self.stores) and all(store.fits(part, d) for store, part in pairs)

    def append(self, cache: Cache, inputs: AttentionInputs, context: AttendContext, count: Int32[Array, " b"]) -> PyTree:
        return with_part(cache, 0, self.stores[0].append(cache.parts[0], inputs, context, count))

    def scores(self, q: Queries, cache: Cache, context: AttendContext) -> Float32[Array, "b h g t m"]:
        """The scores of every tier, padded, behind each other."""
        pairs = zip(self.stores, cache.parts, strict=True)
        return jnp.concatenate([store.scores(q, part, context) for store, part in pairs], -1)

    def attention(self, q: Queries, cache: Cache, context: AttendContext) -> tuple[Queries, Float32[Array, "b h g t"]]:
        pairs = zip(self.stores, cache.parts, strict=True)
        found = [store.attention(q, part, context.replace(encode=store)) for store, part in pairs]
        return joined([(_real(*of_tier).astype(q.dtype), of_tier[1]) for of_tier in found])

    def weighted_sum(
        self, cache: Cache, context: AttendContext, weights: Float32[Array, "b h g t m"], d: int
    ) -> Float32[Array, "b h g t d"]:
        of_tiers = zip(self.stores, cache.parts, jnp.split(weights, len(self.stores), -1), strict=True)
        return sum(store.weighted_sum(part, context, part_weights, d) for store, part, part_weights in of_tiers)


def _real(out: Queries, lse: Float32[Array, "b h g t"]) -> Float32[Array, "b h g t d"]:
    """An attention's output in float32, zero where it saw no slot."""
    return jnp.where((lse > -jnp.inf)[..., None], out.astype(jnp.float32), 0.0)


@partial(jax.jit)
def _tiers(rule: TierRule, scores: Array, keep: Array, length: Array) -> Int32[Array, "l b h n"]:
    """Which tier each kept slot of a prompt is in."""
    pos = jnp.broadcast_to(jnp.arange(keep.shape[-1], dtype=jnp.int32), keep.shape)
    ranking = Ranking(scores=scores, protected=jnp.zeros_like(keep), valid=keep, pos=pos)
    return rule.of_prompt(ranking, length)
