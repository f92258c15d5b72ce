"""One eviction after a step: group after group of layers chosen, merged and moved."""

from collections.abc import Sequence
from functools import partial

from jax import lax

from kvjax.cache.kv_cache import KVCache
from kvjax.decode.evict.choose import choose, fold_state, regions
from kvjax.decode.evict.group import Group, Stacked, together
from kvjax.decode.evict.layer_step import LayerStep
from kvjax.decode.evict.merging import merge
from kvjax.decode.evict.reader import Reader, zeros
from kvjax.kernels.compact import Moves, compact


def evict(reader: Reader, cache: KVCache, left: Sequence[LayerStep]) -> KVCache:
    """Cut the heads that are due back to their budgets.

    After the step has attended to everything; `left` is what its attention left of each layer for scorers to read.
    """
    stacked, when, count = Stacked.of(left), reader.stages.when, reader.count
    due = when.due(cache.steps + count, count, held=cache.length, budget=cache.budget) & (count > 0)[:, None]
    layers, b, h = cache.start.shape
    some = layers if reader.stages.allocate is not None else together(layers, b * h * reader.padded_slots)

    def cut(i, cache):
        return _cut(reader, cache, Group.of(cache, stacked, due, first=i * some, count=some, padded_slots=reader.padded_slots))

    return lax.fori_loop(0, layers // some, cut, cache)


def _cut(reader: Reader, cache: KVCache, group: Group) -> KVCache:
    """One group's state, choice, merging and moves."""
    cache = fold_state(reader, cache, group)
    chosen = partial(choose, reader, group=group)

    def nothing(cache):
        moves, choice, _ = zeros(chosen, cache)
        return moves._replace(length=regions(cache.length[group.layers])), choice, group.budget

    moves, choice, budget = lax.cond(group.due.any(), chosen, nothing, cache)
    if reader.stages.allocate is not None:
        cache = cache.replace(budget=budget)
    if reader.stages.merge.rewrites:
        cache = merge(reader, cache, group, choice)
    return _fill_holes(cache, group, moves)


def _fill_holes(cache: KVCache, group: Group, moves: Moves) -> KVCache:
    """Everything with a slot axis moved into the holes, and the regions' new lengths."""
    start = regions(group.start)
    moved = compact(cache.pools, start, moves)
    if not cache.placement.on_device:
        moved["v"] = cache.placement.compact(cache.v, start, moves)
    length = moves.length.reshape(group.budget.shape)
    return cache.replace(length=lax.dynamic_update_slice_in_dim(cache.length, length, group.layers[0], 0), **moved)
