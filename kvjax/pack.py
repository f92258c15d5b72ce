"""Pack: the slots that stay, written into a pool of just their size, layer by layer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kvjax.policy import Policy
from kvjax.prefill import Prefilled
from kvjax.types import BLOCK, position_dtype
from kvjax.view import LayerView


def pack(pre: Prefilled, policy: Policy, decided: Sequence[Any], start: np.ndarray, slots: int) -> tuple[dict, dict]:
    """The pools (keys, values, positions, statistics) with every kept slot in its place, and the merger's memory [L, B]."""
    pools = empty_pools(pre.decoder, policy, slots, pre.rows[0].k[0].dtype)
    values, memory = policy.encode.values, []
    elsewhere = {} if values.home == "device" else {"v": pools.pop("v")}
    for layer in range(pre.decoder.layers):  # in the order of the regions: a block may run into the next one
        stages = policy.merge.at(layer), policy.encode.at(layer)
        for r, (row, d) in enumerate(zip(pre.rows, decided, strict=True)):
            kept = {name: d.stats[layer][name] for name in _statistics(policy)}
            dense = dict(k=row.k[layer], v=row.v[layer], stats=kept, length=row.length, scores=d.scores[layer])
            where = d.keep[layer], jnp.asarray(start[layer, r])
            pools, rest, remembered = _store_layer(*stages, pools, dense, *where)
            memory.append(remembered)
            for name, x in rest.items():
                elsewhere[name] = values.adopt(_put_layer(values, elsewhere[name], x, *where), elsewhere[name])
    shape = (pre.decoder.layers, len(pre.rows))
    memory = {name: jnp.stack([m[name][0] for m in memory]).reshape(shape) for name in policy.merge.memory}
    return pools | elsewhere, memory


def _statistics(policy: Policy) -> tuple[str, ...]:
    """Statistics travel with their slots only if something is evicted while decoding."""
    return policy.score.stats if policy.when.decoding else ()


def empty_pools(decoder: Any, policy: Policy, slots: int, dtype: Any) -> dict[str, Any]:
    """Zeroed pools for keys, values, positions and statistics; `dtype` is that of the prompt's keys and values."""
    d, encode = decoder.head_dim, policy.encode
    stats = {name: jnp.zeros(slots, jnp.float32) for name in _statistics(policy)}
    pos = jnp.zeros(slots, position_dtype(decoder.max_positions))
    v = encode.values.empty(slots, d, encode.value_dtype(dtype))
    return dict(k=encode.keys(slots, d, dtype), v=v, pos=pos, stats=stats)


def _rows(merger, encode, k, v, stats, length, scores, keep):
    """One layer as it will be stored (key rows, values, positions, statistics), and the merger's memory."""
    n = jnp.broadcast_to(jnp.arange(k.shape[2], dtype=jnp.int32), k.shape[:3])
    memory = {name: jnp.full(k.shape[0], jnp.nan, jnp.float32) for name in merger.memory}
    if merger.rewrites:
        valid = n < length[:, None, None]
        view, memory = merger(LayerView(k=k, v=v, pos=n, valid=valid, length=length, stats=stats), keep, scores, memory)
        k, v = view.k, view.v
    return jax.tree.map(lambda x: x[0], dict(k=encode.encode(k), v=v, pos=n, stats=stats)), memory


@partial(jax.jit, donate_argnames=("pools",))
def _store_layer(merger, encode, pools, layer, keep, start):
    """A layer's kept slots written into the pools, the rows of what has no pool here, and the merger's memory."""
    rows, memory = _rows(merger, encode, keep=keep, **layer)
    rest = {name: x for name, x in rows.items() if name not in pools}
    return _pack_layer(pools, {name: rows[name] for name in pools}, keep, start), rest, memory


def _pack_layer(pools, source, keep, start):
    """Write one layer's kept slots into the pools, in position order, block by block."""
    count = keep.sum(-1).astype(jnp.int32)[0]
    ranks = jnp.cumsum(keep[0], -1)
    wanted = jnp.arange(1, keep.shape[-1] + 1)
    order = jax.vmap(partial(jnp.searchsorted, side="left"), (0, None))(ranks, wanted).astype(jnp.int32)
    order = jnp.pad(order, ((0, 0), (0, BLOCK)))

    def region(h, pools):
        def block(i, pools):
            rows = lax.dynamic_slice(order, (h, i * BLOCK), (1, BLOCK))[0]
            take = lambda x: jnp.take(lax.dynamic_index_in_dim(x, h, 0, False), rows, 0, mode="clip")  # noqa: E731
            put = lambda pool, x: lax.dynamic_update_slice_in_dim(  # noqa: E731
                pool, take(x).astype(pool.dtype), start[h] + i * BLOCK, 0
            )
            return jax.tree.map(put, pools, source)

        return lax.fori_loop(0, -(-count[h] // BLOCK), block, pools)

    return lax.fori_loop(0, keep.shape[1], region, pools)


@partial(jax.jit, donate_argnames=("store",), static_argnames=("values",))
def _put_layer(values, store, rows, keep, start):
    """Write one layer's kept values into a store that lives elsewhere, in position order."""
    rank = jnp.cumsum(keep[0], -1, dtype=jnp.int32) - 1
    slots = jnp.where(keep[0], start[:, None] + rank, jnp.iinfo(jnp.int32).max)
    return values.put(store, slots.reshape(-1), rows.reshape(-1, rows.shape[-1]))
