"""Eviction while decoding: score what is held, choose what stays, fill the holes. Nothing is moved that need not move."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from kvjax.cache import KVCache
from kvjax.evidence import Evidence
from kvjax.kernels.compact import Moves, compact, first, plan, rewrite
from kvjax.policy import Policy
from kvjax.view import LayerView, Ranking


def padded_slots(cache: KVCache, layer: int, cap: int) -> tuple[Int32[Array, "b h n"], Bool[Array, "b h n"]]:
    """Pool slots of a layer's regions padded to `cap`, and which of them are in use."""
    i = jnp.arange(cap, dtype=jnp.int32)
    return cache.start[layer][..., None] + i, i < cache.length[layer][..., None]


def view_at(cache: KVCache, slots, valid, *, position, encode, dtype) -> LayerView:
    """The dense view of these slots; keys and values are gathered only if a stage reads them."""
    take = lambda x: jnp.take(x, slots, axis=0, mode="clip")  # noqa: E731
    stats = {name: take(x) for name, x in cache.stats.items()}
    k, v = encode.decode(take(cache.k), dtype), encode.values.take(cache.v, slots).astype(dtype)
    return LayerView(k=k, v=v, pos=take(cache.pos).astype(jnp.int32), valid=valid, length=position, stats=stats)


def _fold_stats(policy: Policy, cache: KVCache, layer: int, *, slots, valid, seen: Evidence, encode, dtype) -> KVCache:
    """The scorer's statistics after this step, back in their slots. The view is in slot order, whatever the positions."""
    if not policy.score.stats:
        return cache
    view = view_at(cache, slots, valid, position=seen.length, encode=encode, dtype=dtype)
    stats = policy.score.at(layer).observe(view, seen)
    where = jnp.where(valid, slots, cache.slots)
    put = lambda pool, x: pool.at[where].set(x, mode="drop")  # noqa: E731
    return cache.replace(stats={name: put(cache.stats[name], x) for name, x in stats.items()})


def _in_position_order(cache: KVCache, *, slots, valid):
    """The same slots by ascending position (unused ones last), and the index of each in the list it came from."""
    pos = jnp.where(valid, jnp.take(cache.pos, slots, mode="clip").astype(jnp.int32), jnp.iinfo(jnp.int32).max)
    order = jnp.argsort(pos, -1)
    sort = lambda x: jnp.take_along_axis(x, order, -1)  # noqa: E731
    return sort(slots), sort(valid), order


def _choose(policy: Policy, cache: KVCache, layer: int, *, slots, valid, seen: Evidence, due, encode, dtype):
    """Keep mask in slot order, the merger's memory, and the slots it changed with their new keys and values."""
    ordered, used, order = _in_position_order(cache, slots=slots, valid=valid)
    view = view_at(cache, ordered, used, position=seen.length, encode=encode, dtype=dtype)
    score, budget = policy.score.at(layer), cache.budget[layer]
    scores, protected = score.score(view, seen), policy.select.protected(view, budget)
    ranking = Ranking(scores=scores[None], protected=protected[None], valid=used[None], pos=view.pos[None])
    keep = jnp.where(due[..., None], policy.select(ranking, budget[None])[0], used)
    memory, rows = {name: x[layer] for name, x in cache.memory.items()}, ()
    if policy.merge.rewrites:
        merged, memory = policy.merge.at(layer)(view, keep, scores, memory)
        rows = _changed(view, merged, keep, slots=ordered, encode=encode)
    return jnp.put_along_axis(keep, order, keep, -1, inplace=False), memory, rows


def _changed(view: LayerView, merged: LayerView, keep, *, slots, encode):
    """The kept slots that merging changed, first in their region's list: (slots, stored keys, values, count)."""
    differs = lambda old, new: (old != new).any(-1)  # noqa: E731
    touched = keep & (differs(view.k, merged.k) | differs(view.v, merged.v))
    order = first(touched)
    sort = lambda x: jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 3)), 2)  # noqa: E731
    return sort(slots), sort(encode.encode(merged.k)), sort(merged.v), touched.sum(-1).astype(jnp.int32)


def _listed(x, count, size: int):
    """Every region's list [b, h, n] in one, with all but its first `count` entries pointing nowhere (dropped when written)."""
    return jnp.where(jnp.arange(x.shape[-1]) < count[..., None], x, size).reshape(-1)


def _write_merged(cache: KVCache, rows) -> KVCache:
    """Merged keys and values in their slots."""
    slots, k, v, count = rows
    if cache.values.home == "device":
        return cache.replace(**rewrite({"k": cache.k, "v": cache.v}, {"k": k, "v": v}, slots, count))
    where = _listed(slots, count, cache.slots)
    return cache.replace(k=rewrite(cache.k, k, slots, count), v=cache.values.put(cache.v, where, v.reshape(-1, v.shape[-1])))


def _fill_holes(cache: KVCache, layer: int, moves: Moves) -> KVCache:
    """Everything with a slot axis moved into the holes, and the regions' new lengths."""
    start = cache.start[layer]
    names = [name for name in ("k", "v", "pos", "stats") if name != "v" or cache.values.home == "device"]
    moved = compact({name: getattr(cache, name) for name in names}, start, moves)
    if "v" not in names:
        listed = lambda x: _listed(start[..., None] + x, moves.count, cache.slots)  # noqa: E731
        moved["v"] = cache.values.copy(cache.v, listed(moves.sources), listed(moves.targets))
    return cache.replace(length=cache.length.at[layer].set(moves.length), **moved)


def evict(policy: Policy, cache: KVCache, layer: int, *, seen: Evidence, cap: int, count, encode, dtype) -> KVCache:
    """Cut the heads that are due back to their budgets, after the step has attended to everything.

    `encode` is the encoder as this layer uses it, `dtype` that of the keys and values policies see.
    """
    slots, valid = padded_slots(cache, layer, cap)
    at = dict(slots=slots, valid=valid, seen=seen, encode=encode, dtype=dtype)
    cache = _fold_stats(policy, cache, layer, **at)
    due = policy.when.due(cache.steps + count, count, held=cache.length[layer], budget=cache.budget[layer])
    due = due & (count > 0)[:, None]

    def choose(cache):
        keep, memory, rows = _choose(policy, cache, layer, due=due, **at)
        return plan(keep, valid), memory, rows

    def nothing(cache):
        shapes = jax.eval_shape(choose, cache)
        moves, memory, rows = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return moves._replace(length=cache.length[layer]), {name: cache.memory[name][layer] for name in memory}, rows

    moves, memory, rows = lax.cond(due.any(), choose, nothing, cache)
    if policy.merge.rewrites:
        cache = _write_merged(cache, rows)
    cache = _fill_holes(cache, layer, moves)
    return cache.replace(memory={name: x.at[layer].set(memory[name]) for name, x in cache.memory.items()})
