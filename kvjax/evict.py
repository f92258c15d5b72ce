"""Eviction while decoding: score what is held, choose what stays, fill the holes. Nothing is moved that need not move."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from kvjax.cache import KVCache
from kvjax.evidence import Evidence
from kvjax.policy import Policy
from kvjax.view import LayerView, Ranking


def padded_slots(cache: KVCache, layer: int, cap: int) -> tuple[Int32[Array, "b h n"], Bool[Array, "b h n"]]:
    """Pool slots of a layer's regions padded to `cap`, and which of them are in use."""
    i = jnp.arange(cap, dtype=jnp.int32)
    return cache.start[layer][..., None] + i, i < cache.length[layer][..., None]


def view_at(cache: KVCache, slots, valid, *, position) -> LayerView:
    """The dense view of these slots; keys and values are gathered only if a stage reads them."""
    take = lambda x: jnp.take(x, slots, axis=0, mode="clip")  # noqa: E731
    stats = {name: take(x) for name, x in cache.stats.items()}
    return LayerView(k=take(cache.k), v=take(cache.v), pos=take(cache.pos), valid=valid, length=position, stats=stats)


def _fold_stats(policy: Policy, cache: KVCache, *, slots, valid, seen: Evidence) -> KVCache:
    """The scorer's statistics after this step, back in their slots. The view is in slot order, whatever the positions."""
    if not policy.score.stats:
        return cache
    stats = policy.score.observe(view_at(cache, slots, valid, position=seen.length), seen)
    where = jnp.where(valid, slots, cache.slots)
    put = lambda pool, x: pool.at[where].set(x, mode="drop")  # noqa: E731
    return cache.replace(stats={name: put(cache.stats[name], x) for name, x in stats.items()})


def _in_position_order(cache: KVCache, *, slots, valid):
    """The same slots by ascending position (unused ones last), and where each stands in that order."""
    pos = jnp.where(valid, jnp.take(cache.pos, slots, mode="clip"), jnp.iinfo(jnp.int32).max)
    order = jnp.argsort(pos, -1)
    sort = lambda x: jnp.take_along_axis(x, order, -1)  # noqa: E731
    return sort(slots), sort(valid), jnp.argsort(order, -1)


def _choose(policy: Policy, cache: KVCache, layer: int, *, slots, valid, seen: Evidence):
    """Keep mask in slot order, and the (possibly merged) view with its slots, in position order."""
    ordered, used, rank = _in_position_order(cache, slots=slots, valid=valid)
    view, budget = view_at(cache, ordered, used, position=seen.length), cache.budget[layer]
    scores, protected = policy.score.score(view, seen), policy.select.protected(view, budget)
    ranking = Ranking(scores=scores[None], protected=protected[None], valid=used[None], pos=view.pos[None])
    keep = policy.select(ranking, budget[None])[0]
    return jnp.take_along_axis(keep, rank, -1), policy.merge(view, keep, scores), ordered


def _moves(keep, valid, due):
    """Fill the holes below a region's new end with the kept slots above it: as many copies as holes, whatever the region's size.

    Returns the new lengths, and for each region the sources, the targets (offsets in the region) and their count.
    """
    i = jnp.arange(keep.shape[-1], dtype=jnp.int32)
    keep = jnp.where(due[..., None], keep, valid)
    length = keep.sum(-1).astype(jnp.int32)
    low = i < length[..., None]
    first = lambda mask: jnp.argsort(~mask, -1, stable=True).astype(jnp.int32)  # noqa: E731
    return length, first(keep & ~low), first(~keep & low), (keep & ~low).sum(-1).astype(jnp.int32)


def _copy(arrays, *, start, sources, targets, count):
    """Copy slots within their regions, in place: `count[r]` moves in region r."""

    def move(r, i, arrays):
        row = lambda x: lax.dynamic_slice_in_dim(x, start[r] + sources[r, i], 1)  # noqa: E731
        put = lambda x: lax.dynamic_update_slice_in_dim(x, row(x), start[r] + targets[r, i], 0)  # noqa: E731
        return [put(x) for x in arrays]

    def region(r, arrays):
        return lax.fori_loop(0, count[r], lambda i, arrays: move(r, i, arrays), arrays)

    return lax.fori_loop(0, start.shape[0], region, arrays)


def _rewrite(arrays, rows, *, slots, count):
    """Write the first `count[r]` rows of region r to their slots, in place."""

    def region(r, arrays):
        put = lambda i: lambda x, new: lax.dynamic_update_slice_in_dim(  # noqa: E731
            x, lax.dynamic_slice(new, (r, i, 0), (1, 1, new.shape[-1]))[0].astype(x.dtype), slots[r, i], 0
        )
        return lax.fori_loop(0, count[r], lambda i, xs: [put(i)(*pair) for pair in zip(xs, rows, strict=True)], arrays)

    return lax.fori_loop(0, count.shape[0], region, arrays)


def evict(policy: Policy, cache: KVCache, layer: int, *, seen: Evidence, cap: int, count) -> KVCache:
    """Cut the heads that are due back to their budgets, after the step has attended to everything."""
    slots, valid = padded_slots(cache, layer, cap)
    cache = _fold_stats(policy, cache, slots=slots, valid=valid, seen=seen)
    held, budget = cache.length[layer], cache.budget[layer]
    due = policy.when.due(cache.steps + count, count, held=held, budget=budget) & (count > 0)[:, None]

    def choose(cache):
        keep, view, ordered = _choose(policy, cache, layer, slots=slots, valid=valid, seen=seen)
        merged = (view.k, view.v, ordered) if policy.merge.rewrites else ()
        return _moves(keep, valid, due), merged

    def nothing(cache):
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(choose, cache))

    (length, sources, targets, moved), merged = lax.cond(due.any(), choose, nothing, cache)
    flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
    start = flat(cache.start[layer])
    kv = [cache.k, cache.v]
    if policy.merge.rewrites:
        rows = [flat(x) for x in merged[:2]]
        kv = _rewrite(kv, rows, slots=flat(merged[2]), count=flat(jnp.where(due, held, 0)))
    (k, v), rest = kv, (cache.pos, cache.stats)
    leaves, shape = jax.tree.flatten((k, v, *rest))
    moved = _copy(leaves, start=start, sources=flat(sources), targets=flat(targets), count=flat(moved))
    k, v, pos, stats = jax.tree.unflatten(shape, moved)
    length = jnp.where(due, length, held)
    return cache.replace(k=k, v=v, pos=pos, stats=stats, length=cache.length.at[layer].set(length))
