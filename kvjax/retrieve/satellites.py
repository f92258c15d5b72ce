"""From the host to the device: the tokens a pivot looks at, over the prompt slots of its satellites."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32

from kvjax.kernels.compact import first
from kvjax.kernels.select_top import select_top
from kvjax.retrieve.clusters import Clusters
from kvjax.stage import Encoder

#: Slots fetched at a time.
_BLOCK = 256


def stored(encode: Encoder, keys: Array, *, layer: Any, head: Any, heads: int) -> Array:
    """Keys [n d] of one head as stored rows [n r], with a traced layer and head.

    An encoder with tables is run for all `heads`; one without, for the one.
    """
    mine, one = encode.at(layer), keys[None, None]
    if mine is encode:
        return encode.encode(one)[0, 0]
    wide = jnp.broadcast_to(one, (1, heads, *keys.shape))
    return lax.dynamic_index_in_dim(mine.encode(wide)[0], head, 0, keepdims=False)


def waiting(state: Any, clusters: Clusters, real: Bool[Array, " b"]) -> tuple[Int32[Array, " bm"], Int32[Array, ""]]:
    """Pairs row · satellites + satellite that are to be refreshed, first in the list, and their count.

    A satellite with more prompt slots than its pivot holds is left as it is.
    """
    pivot = np.array([p for _, _, p in clusters.satellites])
    flags = state.pending[:, pivot] & (state.held[:, pivot] >= state.room) & real[:, None]
    return first(flags.reshape(1, 1, -1))[0, 0], flags.sum().astype(jnp.int32)


def deliver(cache: Any, encode: Encoder, clusters: Clusters, *, real: Bool[Array, " b"]) -> Any:
    """Satellites of pending pivots overwritten with J_m = topk(latest, L_m), ascending; rows that are not real wait.

    Costs nothing where nothing is pending: the loops run as often as there are blocks to move.
    """
    state, many = cache.retrieval, len(clusters.satellites)
    order, count = waiting(state, clusters, real)
    layer_of, head_of, pivot_of = (jnp.asarray(x) for x in np.array(clusters.satellites).T)

    def satellite(i, pools):
        r, m = order[i] // many, order[i] % many
        chosen = select_top(state.latest[r, pivot_of[m]][None], state.room[r, m][None])[0]
        return _overwrite(
            pools, cache, encode, clusters, row=r, member=m, ranks=jnp.cumsum(chosen, dtype=jnp.int32), layer=layer_of[m],
            head=head_of[m], pivot=jnp.asarray(clusters.pivots)[pivot_of[m], 1],
        )  # fmt: skip

    k, v, pos, slot_state = lax.fori_loop(0, count, satellite, (cache.k, cache.v, cache.pos, cache.state))
    # After the loop that reads it: without an order XLA copies what is written later, every step.
    k, v, pos, latest = lax.optimization_barrier((k, v, pos, state.latest))
    moved = jnp.zeros(real.shape, jnp.int32)
    picked = jnp.where(jnp.arange(order.shape[0]) < count, state.room.reshape(-1)[order], 0)
    state = state.replace(
        latest=latest,
        pending=state.pending & ~real[:, None],
        refreshes=state.refreshes + (state.pending & real[:, None]),
        fetched=state.fetched + moved.at[order // many].add(picked),
    )
    return cache.replace(k=k, v=v, pos=pos, state=slot_state, retrieval=state)


def _overwrite(pools, cache: Any, encode: Encoder, clusters: Clusters, *, row, member, ranks, layer, head, pivot):
    """One satellite's prompt slots, block by block."""
    state, room = cache.retrieval, cache.retrieval.room[row, member]
    here, there = cache.start[layer, row, head], cache.start[layer, row, pivot]

    def block(j, pools):
        k, v, pos, slot_state = pools
        i = j * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
        slot = there + jnp.searchsorted(ranks, i + 1, side="left").astype(jnp.int32)
        at = jnp.take(pos, slot, mode="clip").astype(jnp.int32)
        source = state.offset[row, member] + jnp.where(i < room, at, 0)
        target = jnp.where(i < room, here + i, cache.slots)
        keys = stored(encode, state.host.take(state.k, source), layer=layer, head=head, heads=clusters.shape[1])
        return (
            k.at[target].set(keys.astype(k.dtype), mode="drop"),
            encode.placement.append(v, target, state.host.take(state.v, source)),
            pos.at[target].set(at.astype(pos.dtype), mode="drop"),
            jax.tree.map(lambda x: x.at[target].set(0, mode="drop"), slot_state),  # tokens as they came: nothing is merged
        )

    return lax.fori_loop(0, -(-room // _BLOCK), block, pools)
