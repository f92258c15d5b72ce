"""One eviction after a step: group after group of layers chosen, merged and moved."""

from collections.abc import Sequence

from jax import lax

from kvjax.cache import KVCache
from kvjax.evict.choose import choose, fold_stats, regions
from kvjax.evict.group import Group, Stacked, together
from kvjax.evict.merging import merge
from kvjax.evict.reader import Reader, zeros
from kvjax.evict.seen import Seen
from kvjax.kernels.compact import Moves, compact


def evict(reader: Reader, cache: KVCache, seen: Sequence[Seen]) -> KVCache:
    """Cut the heads that are due back to their budgets, after the step has attended to everything and left `seen` of each layer."""
    stacked, when, count = Stacked.of(seen), reader.policy.when, reader.count
    due = when.due(cache.steps + count, count, held=cache.length, budget=cache.budget) & (count > 0)[:, None]
    layers, b, h = cache.start.shape
    some = together(layers, b * h * reader.cap)

    def cut(i, cache):
        return _cut(reader, cache, Group.of(cache, stacked, due, first=i * some, count=some, cap=reader.cap))

    return lax.fori_loop(0, layers // some, cut, cache)


def _cut(reader: Reader, cache: KVCache, group: Group) -> KVCache:
    """One group's statistics, choice, merging and moves."""
    cache = fold_stats(reader, cache, group)
    chosen = lambda cache: choose(reader, cache, group)  # noqa: E731

    def nothing(cache):
        moves, choice = zeros(chosen, cache)
        return moves._replace(length=regions(cache.length[group.layers])), choice

    moves, choice = lax.cond(group.due.any(), chosen, nothing, cache)
    if reader.policy.merge.rewrites:
        cache = merge(reader, cache, group, choice)
    return _fill_holes(cache, group, moves)


def _fill_holes(cache: KVCache, group: Group, moves: Moves) -> KVCache:
    """Everything with a slot axis moved into the holes, and the regions' new lengths."""
    start = regions(group.start)
    names = [name for name in ("k", "v", "pos", "stats") if name != "v" or cache.values.home == "device"]
    moved = compact({name: getattr(cache, name) for name in names}, start, moves)
    if "v" not in names:
        moved["v"] = cache.values.compact(cache.v, start, moves)
    length = moves.length.reshape(group.budget.shape)
    return cache.replace(length=lax.dynamic_update_slice_in_dim(cache.length, length, group.layers[0], 0), **moved)
