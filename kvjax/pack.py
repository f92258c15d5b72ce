"""Pack: the slots that stay, written into a pool of just their size, layer by layer."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.kernels.compact import pick
from kvjax.policy import Policy
from kvjax.prefill import Prefilled
from kvjax.types import position_dtype
from kvjax.view import LayerView


def pack(pre: Prefilled, policy: Policy, decided: Sequence[Any], start: np.ndarray, slots: int) -> tuple[dict, dict]:
    """The pools (keys, values, positions, statistics) with every kept slot in its place, and the merger's memory [L, B]."""
    pools = empty_pools(pre.decoder, policy, slots, pre.rows[0].k[0].dtype)
    values, memory = policy.encode.values, []
    elsewhere = {} if values.home == "device" else {"v": pools.pop("v")}
    for layer in range(pre.decoder.layers):  # in the order of the regions: a block may run into the next one
        merger, encode = policy.merge.at(layer), policy.encode.at(layer)
        for r, (row, d) in enumerate(zip(pre.rows, decided, strict=True)):
            rows = dict(k=row.k[layer], v=row.v[layer], stats={name: d.stats[layer][name] for name in _carried(policy)})
            if merger.rewrites:
                rows, remembered = _merged(merger, rows, row.length, d.keep, d.scores, layer=np.int32(layer))
                memory.append(remembered)
            if encode.rewrites:
                rows["k"] = _encoded(encode, rows["k"])
            rows["pos"], order, count = _order(d.keep, np.int32(layer))
            where = order, start[layer, r][None], count
            pools = _write(pools, {name: rows[name] for name in pools}, *where)
            for name in elsewhere:
                stored = _write_elsewhere(values, elsewhere[name], rows[name], *where)
                elsewhere[name] = values.adopt(stored, elsewhere[name])
    shape = (pre.decoder.layers, len(pre.rows))
    memory = {name: jnp.stack([m[name][0] for m in memory]).reshape(shape) for name in policy.merge.memory}
    return pools | elsewhere, memory


def _carried(policy: Policy) -> tuple[str, ...]:
    """The scorer's statistics travel with their slots only if something is evicted while decoding."""
    return policy.score.stats if policy.when.decoding else ()


def empty_pools(decoder: Any, policy: Policy, slots: int, dtype: Any) -> dict[str, Any]:
    """Zeroed pools for keys, values, positions and statistics; `dtype` is that of the prompt's keys and values."""
    d, encode = decoder.head_dim, policy.encode
    stats = {name: jnp.zeros(slots, jnp.float32) for name in _carried(policy) + policy.merge.stats}
    pos = jnp.zeros(slots, position_dtype(decoder.max_positions))
    v = encode.values.empty(slots, d, encode.value_dtype(dtype))
    return dict(k=encode.keys(slots, d, dtype), v=v, pos=pos, stats=stats)


@jax.jit
def _merged(merger, rows, length, keep, scores, *, layer):
    """A layer's keys, values and statistics after its merges, and the merger's memory."""
    memory = {name: jnp.full(keep.shape[1], jnp.nan, jnp.float32) for name in merger.memory}
    stats = rows["stats"] | {name: jnp.zeros(keep.shape[1:], jnp.float32) for name in merger.stats}
    view = LayerView.of_prompt(length, keep.shape[1:], **rows | {"stats": stats})
    view, memory = merger(view, keep[layer], scores[layer], memory)
    return dict(k=view.k, v=view.v, stats=view.stats), memory


@jax.jit
def _encoded(encode, k):
    return encode.encode(k)


@jax.jit
def _order(keep, layer):
    """A layer's positions [1, h, n]; its kept slots in position order [1, h, n]; how many of each head [1, h]."""
    keep = keep[layer]
    ranks = jnp.cumsum(keep, -1, dtype=jnp.int32)
    wanted = jnp.arange(1, keep.shape[-1] + 1, dtype=jnp.int32)
    find = jax.vmap(jax.vmap(partial(jnp.searchsorted, side="left"), (0, None)), (0, None))
    pos = jnp.broadcast_to(wanted - 1, keep.shape)
    return pos, jnp.minimum(find(ranks, wanted), keep.shape[-1] - 1).astype(jnp.int32), ranks[..., -1]


@partial(jax.jit, donate_argnames=("pools",))
def _write(pools, rows, order, start, count):
    """Write one layer's kept slots into the pools. It compiles for every size of a pool, so it does nothing else."""
    return pick(pools, rows, order, start, count)


@partial(jax.jit, donate_argnames=("store",), static_argnames=("values",))
def _write_elsewhere(values, store, rows, order, start, count):
    """Write one layer's kept values into a store that lives elsewhere."""
    return values.pick(store, rows, order, start, count)
