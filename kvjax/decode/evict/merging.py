"""What a region loses merged into what it keeps, and the slots that changed written back."""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, PyTree

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
    k, pos = lax.optimization_barrier((cache.k, cache.pos))  # merging reads positions: before any of them moves
    return cache.replace(k=k, pos=pos)


class Changed(NamedTuple):
    """Kept slots that merging changed, the first `count` of each region's list, and what is written there."""

    slots: Int32[Array, "b h n"]
    k: PyTree
    v: PyTree
    merge: PyTree
    score: PyTree
    bias: Float32[Array, "b h n"] | None
    count: Int32[Array, "b h"]


def _changed(
    view: LayerView, merged: LayerView, keep: Bool[Array, "b h n"], *, slots: Int32[Array, "b h n"], encode: Stored,
    fitted: tuple[PyTree, PyTree],
) -> Changed:  # fmt: skip
    """The kept slots of which anything is another after merging."""
    before, after = (jax.tree.leaves((x.k, x.v, x.bias, x.state, x.scored)) for x in (view, merged))
    touched = keep & reduce(jnp.logical_or, map(_differs, before, after))
    order = first(touched)

    def sort(x: Array) -> Array:
        return jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 3)), 2)

    k, v = encode.keys.encode(merged.k, merged.pos, fitted[0]), encode.values.encode(merged.v, merged.pos, fitted[1])
    k, v, merge, score, bias = jax.tree.map(sort, (k, v, merged.state, merged.scored, merged.bias))
    return Changed(slots=sort(slots), k=k, v=v, merge=merge, score=score, bias=bias, count=touched.sum(-1).astype(jnp.int32))


def _differs(one: Array, other: Array) -> Bool[Array, "b h n"]:
    return (one != other).any(tuple(range(3, one.ndim)))


def _write(cache: KVCache, new: Changed) -> KVCache:
    """Merged keys, values, state and biases in their slots."""
    pools = {"k": cache.k, "merge": cache.state.merge, "bias": cache.bias}
    rows = {"k": new.k, "merge": new.merge, "bias": new.bias}
    if jax.tree.leaves(new.score):
        pools, rows = pools | {"score": cache.state.score}, rows | {"score": new.score}
    if cache.placement.on_device:
        pools, rows = pools | {"v": cache.v}, rows | {"v": new.v}
    done = rewrite(pools, rows, new.slots, new.count)
    v = done["v"] if "v" in done else cache.placement.rewrite(cache.v, new.v, new.slots, new.count)
    state = cache.state.replace(merge=done["merge"], bias=done["bias"], score=done.get("score", cache.state.score))
    return cache.replace(k=done["k"], v=v, state=state)
