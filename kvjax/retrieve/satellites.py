"""From the host to the device: the tokens a pivot looks at, over the prompt slots of its satellites."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.codec import Codec
from kvjax.encode import Stored
from kvjax.kernels.compact import first
from kvjax.kernels.select_top import select_top
from kvjax.protocols import Cache
from kvjax.retrieve.clusters import Clusters
from kvjax.types import Layer, Number

#: Slots fetched at a time.
_BLOCK = 256


def stored(codec: Codec, x: Array, pos: Array, *, layer: Layer, head: Number, heads: int) -> PyTree:
    """Keys or values [n d] of one head at positions [n] as stored rows, leaves [n ...], with a traced layer and head.

    A codec with tables is run for all `heads`; one without, for the one.
    """
    mine = codec.at(layer)
    many = 1 if mine is codec else heads
    wide = jnp.broadcast_to(x[None, None], (1, many, *x.shape))
    rows = mine.encode(wide, jnp.broadcast_to(pos[None, None], wide.shape[:3]))
    return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x[0], head if many > 1 else 0, 0, keepdims=False), rows)


def waiting(state: PyTree, clusters: Clusters, real: Bool[Array, " b"]) -> tuple[Int32[Array, " bm"], Int32[Array, ""]]:
    """Pairs row · satellites + satellite that are to be refreshed, first in the list, and their count.

    A satellite with more prompt slots than its pivot holds is left as it is.
    """
    pivot = np.array([p for _, _, p in clusters.satellites])
    flags = state.pending[:, pivot] & (state.held[:, pivot] >= state.room) & real[:, None]
    return first(flags.reshape(1, 1, -1))[0, 0], flags.sum().astype(jnp.int32)


def deliver(cache: Cache, encode: Stored, clusters: Clusters, *, real: Bool[Array, " b"]) -> PyTree:
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


def _overwrite(pools, cache: Cache, encode: Stored, clusters: Clusters, *, row, member, ranks, layer, head, pivot):
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
        of_head = dict(layer=layer, head=head, heads=clusters.shape[1])
        keys = stored(encode.keys, state.host.take(state.k, source), at, **of_head)
        values = stored(encode.values, state.host.take(state.v, source), at, **of_head)
        return (
            jax.tree.map(lambda x, new: x.at[target].set(new.astype(x.dtype), mode="drop"), k, keys),
            encode.store_values(v, target, values),
            pos.at[target].set(at.astype(pos.dtype), mode="drop"),
            jax.tree.map(lambda x: x.at[target].set(0, mode="drop"), slot_state),  # tokens as they came: nothing is merged
        )

    return lax.fori_loop(0, -(-room // _BLOCK), block, pools)
