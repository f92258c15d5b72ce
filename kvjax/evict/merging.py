"""What a region loses merged into what it keeps, and the slots that changed written back."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from kvjax.cache import KVCache
from kvjax.evict.choose import Choice
from kvjax.evict.group import Group
from kvjax.evict.reader import Reader, zeros
from kvjax.kernels.compact import first, rewrite
from kvjax.view import LayerView


def merge(reader: Reader, cache: KVCache, group: Group, choice: Choice) -> KVCache:
    """Every layer's lost slots merged into its kept ones, one layer after the other; what is not due costs nothing."""

    def one(i, cache):
        layer, memory = group.layers[i], {name: x[group.layers[i]] for name, x in cache.memory.items()}
        slots, used, keep, scores = (x[i] for x in choice)

        def merged(cache):
            view = reader.view(cache, layer, slots, used)
            new, left = reader.policy.merge.at(layer)(view, keep, scores, memory)
            stats = reader.policy.merge.stats
            return _changed(view, new, keep, slots=slots, encode=reader.encode.at(layer), stats=stats), left

        rows, left = lax.cond(group.due[i].any(), merged, lambda cache: (zeros(merged, cache)[0], memory), cache)
        cache = _write(cache, rows)
        return cache.replace(memory={name: x.at[layer].set(left[name]) for name, x in cache.memory.items()})

    cache = lax.fori_loop(0, len(group.layers), one, cache)
    k, pos = lax.optimization_barrier((cache.k, cache.pos))  # merging reads positions: before any of them moves
    return cache.replace(k=k, pos=pos)


def _changed(view: LayerView, merged: LayerView, keep: Bool[Array, "b h n"], *, slots: Int32[Array, "b h n"], encode, stats: tuple):
    """The kept slots that merging changed, first in their region's list: (slots, stored keys, values, `stats`, count)."""
    differs = lambda old, new: (old != new).any(-1)  # noqa: E731
    touched = keep & (differs(view.k, merged.k) | differs(view.v, merged.v))
    order = first(touched)
    sort = lambda x: jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 3)), 2)  # noqa: E731
    stats = {name: sort(merged.stats[name]) for name in stats}
    return sort(slots), sort(encode.encode(merged.k)), sort(merged.v), stats, touched.sum(-1).astype(jnp.int32)


def _write(cache: KVCache, rows) -> KVCache:
    """Merged keys, values and statistics in their slots."""
    slots, k, v, stats, count = rows
    rows, pools = dict(k=k, stats=stats), dict(k=cache.k, stats={name: cache.stats[name] for name in stats})
    if cache.values.home == "device":
        rows, pools = rows | {"v": v}, pools | {"v": cache.v}
    new = rewrite(pools, rows, slots, count)
    v = new["v"] if "v" in new else cache.values.rewrite(cache.v, v, slots, count)
    return cache.replace(k=new["k"], v=v, stats=cache.stats | new["stats"])
