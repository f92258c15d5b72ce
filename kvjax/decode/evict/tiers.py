"""Slots of a cache in tiers, moved after a step: from the tier they are in to a later one, or out of the cache."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.cache.parts import counted
from kvjax.decode.evict.group import Stacked
from kvjax.decode.evict.layer_step import LayerStep
from kvjax.decode.evict.reader import Reader
from kvjax.encode.parted import with_part
from kvjax.encode.tail import put_rows
from kvjax.encode.tier_rule import TierView
from kvjax.kernels.compact import Moves, compact, first, plan
from kvjax.types import Layer


class Sent(NamedTuple):
    """Slots on their way to another tier, the first `count` of each region's.

    Attributes:
        rows: [b, h, n, ...] by name of the pool, as that tier stores them.
    """

    rows: dict[str, PyTree]
    count: Int32[Array, "b h"]


def settle(reader: Reader, cache: KVCache, left: Sequence[LayerStep]) -> KVCache:
    """After a step: the scorer's state of every watched tier, then whatever the rule moves. Layer by layer, one body for all."""
    stacked, count = Stacked.of(left), reader.count
    steps = cache.steps + count
    parts = tuple(part.replace(position=cache.position, steps=cache.steps) for part in cache.parts)

    def one(layer, cache):
        tiers = _Tiers(reader, layer, jax.tree.map(lambda x: x[layer], stacked).unstacked())
        for i in range(reader.encode.rule.watched):
            cache = with_part(cache, i, tiers.observed(cache.parts[i], i))
        held = tuple(part.length[layer] for part in cache.parts)
        due = reader.encode.rule.due(steps, held) & (count > 0)
        # No turn or one: what a `cond` gives back is copied, moved or not.
        return lax.fori_loop(0, due.any().astype(jnp.int32), lambda _, cache: tiers.moved(cache, due), cache)

    cache = lax.fori_loop(0, len(left), one, cache.replace(parts=parts))
    return counted(cache)


class _Tiers:
    """One layer's tiers as a step left them."""

    def __init__(self, reader: Reader, layer: Layer, left: LayerStep):
        self.reader, self.layer, self.left, self.score = reader, layer, left, reader.stages.score.at(layer)

    def _read(self, part: KVCache, i: int):
        """The view and the evidence of a tier, and its slots."""
        reader = replace(self.reader, encode=self.reader.encode.stores[i])
        n = jnp.arange(reader.padded_slots, dtype=jnp.int32)
        slots, valid = part.start[self.layer][..., None] + n, n < part.length[self.layer][..., None]
        view = reader.seen(part, self.layer, slots, valid, part.state.score)
        return view, reader.evidence(part, self.layer, self.left), slots

    def observed(self, part: KVCache, i: int) -> KVCache:
        """The tier with its scorer's state brought up to date."""
        if not jax.tree.leaves(part.state.score):
            return part
        view, evidence, slots = self._read(part, i)
        where = jnp.where(view.valid, slots, part.slots)
        new = self.score.observe(view, evidence)
        state = jax.tree.map(lambda pool, x: pool.at[where].set(x, mode="drop"), part.state.score, new)
        return part.replace(state=part.state.replace(score=state))

    def moved(self, cache: KVCache, due: Bool[Array, " b"]) -> KVCache:
        """The cache with every watched tier's slots where the rule wants them, the last tier's first: it makes room.

        Everything is read before anything is written, so that the pools are written where they lie.
        """
        wanted, valid = self._wanted(cache)
        moves, sent = [], {}
        for i, (to, held) in enumerate(zip(wanted, valid, strict=True)):
            moves.append(plan(held & ((to == i) | ~due[:, None, None]), held))
            for j in range(i + 1, len(cache.parts)):
                sent[i, j] = self._taken(cache, i, j, held & (to == j) & due[:, None, None])
        cache, moves, sent = lax.optimization_barrier((cache, moves, sent))
        for i in reversed(range(len(moves))):
            for j in range(i + 1, len(cache.parts)):
                cache = with_part(cache, j, self._behind(cache.parts[j], sent[i, j]))
            cache = with_part(cache, i, self._closed(cache.parts[i], moves[i]))
        return cache

    def _wanted(self, cache: KVCache) -> tuple[tuple[Int32[Array, "b h n"], ...], list[Bool[Array, "b h n"]]]:
        """Where the rule wants the slots of every watched tier, and which of them are in use."""
        rule, views = self.reader.encode.rule, []
        for i in range(rule.watched):
            view, evidence, _ = self._read(cache.parts[i], i)
            views.append(TierView(scores=self.score.score(view, evidence), pos=view.pos, valid=view.valid))
        length = self.reader.offset + self.reader.count
        held = tuple(part.length[self.layer] for part in cache.parts)
        return rule.after_step(tuple(views), held, length, cache.budget[self.layer]), [view.valid for view in views]

    def _taken(self, cache: KVCache, i: int, j: int, chosen: Bool[Array, "b h n"]) -> Sent:
        """Chosen slots of tier i as tier j stores them."""
        source, target = cache.parts[i], cache.parts[j]
        page, most = self.reader.encode.stores[j].page, self.reader.encode.rule.most or chosen.shape[-1]
        slots = source.start[self.layer][..., None] + in_pages(first(chosen)[..., :most], page)
        rows = _rows(self.reader, source, target, self.layer, slots, stores=(i, j))
        return Sent(rows=rows, count=chosen.sum(-1).astype(jnp.int32))

    def _behind(self, part: KVCache, sent: Sent) -> KVCache:
        """A tier with what another sends it behind its last slot."""
        at = part.start[self.layer] + part.length[self.layer]
        pools = {name: put_rows(pool, sent.rows[name], at, sent.count, part.slots) for name, pool in part.pools.items()}
        return part.replace(**pools, length=part.length.at[self.layer].add(sent.count))

    def _closed(self, part: KVCache, moves: Moves) -> KVCache:
        """A tier without the holes that were left."""
        length = part.length.at[self.layer].set(moves.length)
        return part.replace(**compact(part.pools, part.start[self.layer], moves), length=length)


def in_pages(listed: Int32[Array, "b h m"], page: int) -> Int32[Array, "b h n"]:
    """A list of slots, zeros behind it up to a whole page: regions may be padded to fewer slots than a page has."""
    return jnp.pad(listed, ((0, 0), (0, 0), (0, -listed.shape[-1] % page)))


def _rows(reader: Reader, source: KVCache, target: KVCache, layer: Layer, slots: Int32[Array, "b h m"], *, stores):
    """Slots of one tier as the rows of another."""
    old, new = (reader.encode.stores[i].at(layer) for i in stores)

    def taken(pool):
        return jnp.take(pool, slots, axis=0, mode="clip")

    k, v = old.take(source, layer, slots, reader.dtype)
    pos, fitted = taken(source.pos), target.fitted_of(layer)
    coded = [codec.encode(x, pos.astype(jnp.int32), p) for codec, x, p in zip(new.codecs, (k, v), fitted, strict=True)]
    scored = source.state if jax.tree.leaves(target.state.score) else source.state.replace(score=())  # a tier that is not watched
    return {"k": coded[0], "v": coded[1], "pos": pos, "state": jax.tree.map(taken, scored)}
