"""What a region loses merged into what it keeps, and the slots that changed written back."""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.decode.evict.choose import Choice
from kvjax.decode.evict.group import Group
from kvjax.decode.evict.reader import Reader, zeros
from kvjax.encode import Stored
from kvjax.kernels.compact import first, rewrite
from kvjax.reach import in_reach
from kvjax.view import LayerView


def merge(reader: Reader, cache: KVCache, group: Group, choice: Choice) -> KVCache:
    """Every layer's lost slots merged into its kept ones, one layer after the other; what is not due costs nothing.

    What a layer's sliding window has left behind is merged into nothing.
    """
    windows = reader.windows_of(group.layers)

    def one(i, cache):
        layer, memory = group.layers[i], jax.tree.map(lambda x: x[group.layers[i]], cache.memory)
        slots, used, keep, scores = (x[i] for x in choice)

        def merged(cache):
            view = reader.view(cache, layer, slots, used, cache.state.merge)
            seen = in_reach(view.pos, view.length, None if windows is None else windows[i])
            view = view.replace(valid=used & (keep | seen))
            if reader.stages.merge.state_of is not None:
                view = view.replace(scored=jax.tree.map(lambda x: jnp.take(x, slots, axis=0, mode="clip"), cache.state.score))
            new, left = reader.stages.merge.at(layer)(view, keep, scores, memory)
            encode, fitted = reader.encode.at(layer), cache.fitted_of(layer)
            return _changed(view, new, keep, slots=slots, encode=encode, fitted=fitted), left

        rows, left = lax.cond(group.due[i].any(), merged, lambda cache: (zeros(merged, cache)[0], memory), cache)
        cache = _write(cache, rows)
        return cache.replace(memory=jax.tree.map(lambda x, new: x.at[layer].set(new), cache.memory, left))

    cache = lax.fori_loop(0, len(group.layers), one, cache)
    pools, memory = lax.optimization_barrier((cache.pools, cache.memory))  # merging reads: before anything moves
    return cache.replace(**pools, memory=memory)


class Changed(NamedTuple):
    """Kept slots that merging changed, the first `count` of each region's list, and what is written there.

    Attributes:
        rows: [b, h, n, ...] of what the merger gave anew, by field of the view; keys and values as their codecs store them.
    """

    slots: Int32[Array, "b h n"]
    rows: dict[str, PyTree]
    count: Int32[Array, "b h"]


#: What a merger may change of a view.
_FIELDS = "k", "v", "bias", "state", "scored"


def _changed(
    view: LayerView, merged: LayerView, keep: Bool[Array, "b h n"], *, slots: Int32[Array, "b h n"], encode: Stored,
    fitted: tuple[PyTree, PyTree],
) -> Changed:  # fmt: skip
    """The kept slots of which anything is another after merging. A field that a merger hands on as it was is not written."""
    before, after = ({name: getattr(x, name) for name in _FIELDS} for x in (view, merged))
    rows = {name: x for name, x in after.items() if not _same(before[name], x)}
    pairs = zip(*(jax.tree.leaves([x[name] for name in rows]) for x in (before, after)), strict=True)
    touched = keep & reduce(jnp.logical_or, [_differs(*pair) for pair in pairs], jnp.zeros_like(keep))
    order = first(touched)

    def sort(x: Array) -> Array:
        return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 3)), 2)

    for name, codec, params in zip(("k", "v"), encode.codecs, fitted, strict=True):
        if name in rows:
            rows[name] = codec.encode(rows[name], merged.pos, params)
    return Changed(slots=sort(slots), rows=jax.tree.map(sort, rows), count=touched.sum(-1).astype(jnp.int32))


def _same(one: PyTree, other: PyTree) -> bool:
    """Whether two trees hold the very same arrays."""
    return [*map(id, jax.tree.leaves(one))] == [*map(id, jax.tree.leaves(other))]


def _differs(one: Array, other: Array) -> Bool[Array, "b h n"]:
    """Where any number of a slot is another. A maximum of bytes, which is faster on a CPU than `any`."""
    return (one != other).astype(jnp.int8).max(tuple(range(3, one.ndim)), initial=0) > 0


def _write(cache: KVCache, new: Changed) -> KVCache:
    """What merging changed, in its slots."""
    pools = {"k": cache.k, "v": cache.v, "bias": cache.bias, "state": cache.state.merge, "scored": cache.state.score}
    here = {name: x for name, x in new.rows.items() if name != "v" or cache.placement.on_device}
    done = pools | rewrite({name: pools[name] for name in here}, here, new.slots, new.count)
    if "v" in new.rows and "v" not in here:
        done["v"] = cache.placement.rewrite(cache.v, new.rows["v"], new.slots, new.count)
    state = cache.state.replace(merge=done["state"], score=done["scored"], bias=done["bias"])
    return cache.replace(k=done["k"], v=done["v"], state=state)
