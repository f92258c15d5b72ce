"""Eviction while decoding: score what is held, choose what stays, fill the holes. Nothing is moved that need not move.

All layers at once, after the last one: no layer reads what another holds, and what is done once is compiled once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from kvjax.cache import KVCache
from kvjax.evidence import Evidence
from kvjax.kernels.compact import Moves, compact, first, plan, rewrite
from kvjax.policy import Policy
from kvjax.view import LayerView, Ranking


def padded_slots(cache: KVCache, cap: int) -> tuple[Int32[Array, "l b h n"], Bool[Array, "l b h n"]]:
    """Pool slots of all regions padded to `cap`, and which of them are in use."""
    i = jnp.arange(cap, dtype=jnp.int32)
    return cache.start[..., None] + i, i < cache.length[..., None]


def view_at(cache: KVCache, slots, valid, *, position, encode, dtype) -> LayerView:
    """The dense view of a layer's slots; keys and values are gathered only if a stage reads them."""
    take = lambda x: jnp.take(x, slots, axis=0, mode="clip")  # noqa: E731
    stats = {name: take(x) for name, x in cache.stats.items()}
    k, v = encode.decode(take(cache.k), dtype), encode.values.take(cache.v, slots).astype(dtype)
    return LayerView(k=k, v=v, pos=take(cache.pos).astype(jnp.int32), valid=valid, length=position, stats=stats)


def _each_layer(f: Callable, seen: Sequence[Evidence], *xs: Any) -> Any:
    """f(layer, seen[layer], x[layer], ...) of all layers, stacked: a loop, whose body is compiled once."""
    structure, layers = jax.tree.structure(seen[0]), jnp.arange(len(seen), dtype=jnp.int32)
    leaves = [jnp.stack(x) for x in zip(*map(jax.tree.leaves, seen), strict=True)]
    return lax.map(lambda at: f(at[0], jax.tree.unflatten(structure, at[1]), *at[2]), (layers, leaves, xs))


def _fold_stats(policy: Policy, cache: KVCache, *, slots, valid, seen: Sequence[Evidence], encode, dtype) -> KVCache:
    """The scorer's statistics after this step, back in their slots. Views are in slot order, whatever the positions."""
    if not policy.score.stats:
        return cache

    def observe(layer, seen, slots, valid):
        view = view_at(cache, slots, valid, position=seen.length, encode=encode.at(layer), dtype=dtype)
        return policy.score.at(layer).observe(view, seen)

    stats = _each_layer(observe, seen, slots, valid)
    where = jnp.where(valid, slots, cache.slots)
    put = lambda pool, x: pool.at[where].set(x, mode="drop")  # noqa: E731
    return cache.replace(stats={name: put(cache.stats[name], x) for name, x in stats.items()})


def _in_position_order(cache: KVCache, *, slots, valid):
    """The same slots by ascending position (unused ones last), and the index of each in the list it came from."""
    pos = jnp.where(valid, jnp.take(cache.pos, slots, mode="clip").astype(jnp.int32), jnp.iinfo(jnp.int32).max)
    order = jnp.argsort(pos, -1)
    sort = lambda x: jnp.take_along_axis(x, order, -1)  # noqa: E731
    return sort(slots), sort(valid), order


def _choose(policy: Policy, cache: KVCache, *, slots, valid, seen: Sequence[Evidence], due, encode, dtype):
    """The moves that leave what stays, and what mergers read of the choice: slots in position order, used, kept, scores."""
    ordered, used, order = _in_position_order(cache, slots=slots, valid=valid)

    def judge(layer, seen, slots, used, budget):
        view = view_at(cache, slots, used, position=seen.length, encode=encode.at(layer), dtype=dtype)
        return policy.score.at(layer).score(view, seen), policy.select.protected(view, budget), view.pos

    scores, protected, pos = _each_layer(judge, seen, ordered, used, cache.budget)
    ranking = Ranking(scores=scores, protected=protected, valid=used, pos=pos)
    keep = jnp.where(due[..., None], policy.select(ranking, cache.budget), used)
    moves = plan(_rows(jnp.put_along_axis(keep, order, keep, -1, inplace=False)), _rows(valid))
    return moves, (ordered, used, keep, scores) if policy.merge.rewrites else ()


def _rows(x):
    """Layers and rows as one axis."""
    return x.reshape(-1, *x.shape[2:])


def _merge(policy: Policy, cache: KVCache, *, choice, due, position, encode, dtype) -> KVCache:
    """What layers lose merged into what they keep, one layer after the other."""

    def layer(i, cache):
        slots, used, keep, scores = (x[i] for x in choice)
        memory = {name: x[i] for name, x in cache.memory.items()}

        def merge(cache):
            view = view_at(cache, slots, used, position=position, encode=encode.at(i), dtype=dtype)
            merged, new = policy.merge.at(i)(view, keep, scores, memory)
            return _changed(view, merged, keep, slots=slots, encode=encode.at(i)), new

        rows, memory = lax.cond(due[i].any(), merge, lambda cache: (_zeros(merge, cache)[0], memory), cache)
        cache = _write_merged(cache, rows)
        return cache.replace(memory={name: x.at[i].set(memory[name]) for name, x in cache.memory.items()})

    return lax.fori_loop(0, len(due), layer, cache)


def _zeros(f, x):
    """Zeros for everything that f(x) gives."""
    return jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), jax.eval_shape(f, x))


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


def _fill_holes(cache: KVCache, moves: Moves) -> KVCache:
    """Everything with a slot axis moved into the holes, and the regions' new lengths."""
    start = _rows(cache.start)
    names = [name for name in ("k", "v", "pos", "stats") if name != "v" or cache.values.home == "device"]
    moved = compact({name: getattr(cache, name) for name in names}, start, moves)
    if "v" not in names:
        listed = lambda x: _listed(start[..., None] + x, moves.count, cache.slots)  # noqa: E731
        moved["v"] = cache.values.copy(cache.v, listed(moves.sources), listed(moves.targets))
    return cache.replace(length=moves.length.reshape(cache.length.shape), **moved)


def evict(policy: Policy, cache: KVCache, *, seen: Sequence[Evidence], cap: int, count, encode, dtype) -> KVCache:
    """Cut the heads that are due back to their budgets, after the step has attended to everything.

    `seen` is each layer's evidence, `encode` the policy's encoder, `dtype` that of the keys and values policies see.
    """
    slots, valid = padded_slots(cache, cap)
    at, how = dict(slots=slots, valid=valid), dict(encode=encode, dtype=dtype)
    cache = _fold_stats(policy, cache, seen=seen, **at, **how)
    due = policy.when.due(cache.steps + count, count, held=cache.length, budget=cache.budget) & (count > 0)[:, None]
    choose = lambda cache: _choose(policy, cache, seen=seen, due=due, **at, **how)  # noqa: E731

    def nothing(cache):
        moves, choice = _zeros(choose, cache)
        return moves._replace(length=_rows(cache.length)), choice

    moves, choice = lax.cond(due.any(), choose, nothing, cache)
    if policy.merge.rewrites:
        cache = _merge(policy, cache, choice=choice, due=due, position=seen[0].length, **how)
    return _fill_holes(cache, moves)
