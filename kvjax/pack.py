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
        merger, encode = policy.merge.at(layer), policy.encode.at(layer)
        for r, (row, d) in enumerate(zip(pre.rows, decided, strict=True)):
            rows = dict(k=row.k[layer], v=row.v[layer], stats={name: d.stats[layer][name] for name in _statistics(policy)})
            if merger.rewrites:
                rows, remembered = _merged(merger, rows, row.length, d.keep, d.scores, layer=np.int32(layer))
                memory.append(remembered)
            if encode.rewrites:
                rows["k"] = _encoded(encode, rows["k"])
            order, count = _order(d.keep, np.int32(layer))
            pools = _write(pools, {name: rows[name] for name in rows if name in pools}, order, count, start[layer, r])
            for name in elsewhere:
                stored = _put_layer(values, elsewhere[name], rows[name][0], d.keep[layer], start[layer, r])
                elsewhere[name] = values.adopt(stored, elsewhere[name])
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


@jax.jit
def _merged(merger, rows, length, keep, scores, *, layer):
    """A layer's keys, values and statistics after its merges, and the merger's memory."""
    memory = {name: jnp.full(keep.shape[1], jnp.nan, jnp.float32) for name in merger.memory}
    view = LayerView.of_prompt(length, keep.shape[1:], **rows)
    view, memory = merger(view, keep[layer], scores[layer], memory)
    return dict(k=view.k, v=view.v, stats=view.stats), memory


@jax.jit
def _encoded(encode, k):
    return encode.encode(k)


@jax.jit
def _order(keep, layer):
    """A layer's kept slots of each head in position order [h, n + BLOCK], and how many [h]; what is beyond them is arbitrary."""
    ranks = jnp.cumsum(keep[layer, 0], -1, dtype=jnp.int32)
    wanted = jnp.arange(1, keep.shape[-1] + 1, dtype=jnp.int32)
    order = jax.vmap(partial(jnp.searchsorted, side="left"), (0, None))(ranks, wanted).astype(jnp.int32)
    order = jnp.minimum(order, keep.shape[-1] - 1)
    return jnp.pad(order, ((0, 0), (0, BLOCK))), ranks[:, -1]


@partial(jax.jit, donate_argnames=("pools",))
def _write(pools, rows, order, count, start):
    """Write one layer's kept slots, and where they were in the prompt, into the pools, block by block.

    It compiles for every size of a pool, so it does little else.
    """
    blocks = -(-count // BLOCK)
    ends = jnp.cumsum(blocks)

    def block(b, pools):
        h = jnp.searchsorted(ends, b, side="right", method="compare_all")
        i = (b - ends[h] + blocks[h]) * BLOCK
        slots = lax.dynamic_slice(order, (h, i), (1, BLOCK))[0]
        kept = jax.tree.map(lambda x: x.at[0, h, slots].get(mode="promise_in_bounds"), rows) | {"pos": slots}
        put = lambda pool, x: lax.dynamic_update_slice_in_dim(pool, x.astype(pool.dtype), start[h] + i, 0)  # noqa: E731
        return jax.tree.map(put, pools, kept)

    return lax.fori_loop(0, ends[-1], block, pools)


@partial(jax.jit, donate_argnames=("store",), static_argnames=("values",))
def _put_layer(values, store, rows, keep, start):
    """Write one layer's kept values into a store that lives elsewhere, in position order."""
    rank = jnp.cumsum(keep[0], -1, dtype=jnp.int32) - 1
    slots = jnp.where(keep[0], start[:, None] + rank, jnp.iinfo(jnp.int32).max)
    return values.put(store, slots.reshape(-1), rows.reshape(-1, rows.shape[-1]))
