"""From the host to the device: the tokens a pivot looks at, over the prompt slots of its satellites."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Int32, PyTree, UInt32

from kvjax.codec import Codec
from kvjax.encode import Stored
from kvjax.kernels.compact import first
from kvjax.kernels.select_top import select_top
from kvjax.protocols import Cache
from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.pivot_state import as_bits, of_bits
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


def ask(cache: Cache, clusters: Clusters, rank: UInt32[Array, "b p n"], *, real: Bool[Array, " b"]) -> PyTree:
    """J_m = topk(rank, L_m), by the pivot's prompt slots, for the satellites of pivots that became pending in this step."""
    state, many = cache.retrieval, len(clusters.satellites)
    order, count = waiting(state, clusters, real)
    pivot_of = jnp.asarray(np.array(clusters.satellites)[:, 2])

    def satellite(i, asked):
        r, m = order[i] // many, order[i] % many
        chosen = select_top(rank[r, pivot_of[m]][None], state.room[r, m][None])[0]
        return asked.at[r, m].set(as_bits(chosen))

    return cache.replace(retrieval=state.replace(asked=lax.fori_loop(0, count, satellite, state.asked)))


def begin(cache: Cache, clusters: Clusters, *, real: Bool[Array, " b"]) -> None:
    """Have the rows read that `deliver` will write at the end of the next step; nothing for homes that do not read ahead."""
    state = cache.retrieval
    if not state.host.reads_ahead:
        return
    order, count = waiting(state, clusters, real)

    def satellite(i, begun):
        theirs = _satellite(cache, clusters, order[i])

        def block(j, begun):
            at = theirs.block(cache.pos, j)[1]
            return begun + state.host.begin(state.k, at) + state.host.begin(state.v, at)

        return lax.fori_loop(0, theirs.blocks, block, begun)

    lax.fori_loop(0, count, satellite, jnp.int32(0))


def deliver(cache: Cache, encode: Stored, clusters: Clusters, *, real: Bool[Array, " b"]) -> PyTree:
    """Satellites of pending pivots overwritten with what was asked for them, ascending; rows that are not real wait.

    Costs nothing where nothing is pending: the loops run as often as there are blocks to move.
    """
    state, many = cache.retrieval, len(clusters.satellites)
    order, count = waiting(state, clusters, real)

    def satellite(i, pools):
        return _overwrite(pools, cache, encode, _satellite(cache, clusters, order[i]), heads=clusters.shape[1])

    k, v, pos, slot_state = lax.fori_loop(0, count, satellite, (cache.k, cache.v, cache.pos, cache.state))
    # After the loop that reads it: without an order XLA copies what is written later, every step.
    k, v, pos, asked = lax.optimization_barrier((k, v, pos, state.asked))
    none = jnp.zeros(real.shape, jnp.int32)
    picked = jnp.where(jnp.arange(order.shape[0]) < count, state.room.reshape(-1)[order], 0)
    state = state.replace(
        asked=asked,
        pending=state.pending & ~real[:, None],
        refreshes=state.refreshes + (state.pending & real[:, None]),
        fetched=state.fetched.plus(none.at[order // many].add(picked)),
        moved=state.moved.plus(none.at[order // many].add(-(-picked // _BLOCK) * _BLOCK)),
    )
    return cache.replace(k=k, v=v, pos=pos, state=slot_state, retrieval=state)


class _Satellite(NamedTuple):
    """One satellite that is to be refreshed.

    Attributes:
        layer, head: which it is.   room: its prompt slots.   here: the first of them.   offset: of its whole prompt in the stores.
        there: first slot of its pivot.   ranks: how many of the pivot's slots are chosen, up to each.
    """

    layer: Int32[Array, ""]
    head: Int32[Array, ""]
    room: Int32[Array, ""]
    here: Int32[Array, ""]
    offset: Int32[Array, ""]
    there: Int32[Array, ""]
    ranks: Int32[Array, " n"]

    @property
    def blocks(self) -> Int32[Array, ""]:
        return -(-self.room // _BLOCK)

    def block(self, pos: Array, j: Number) -> tuple[Int32[Array, " block"], Int32[Array, " block"], Int32[Array, " block"]]:
        """Of block j: positions, their rows in the stores, and the slots they go to, counted from the satellite's first."""
        i = j * _BLOCK + jnp.arange(_BLOCK, dtype=jnp.int32)
        slot = self.there + jnp.searchsorted(self.ranks, i + 1, side="left").astype(jnp.int32)
        at = jnp.take(pos, slot, mode="clip").astype(jnp.int32)
        return at, self.offset + jnp.where(i < self.room, at, 0), i


def _satellite(cache: Cache, clusters: Clusters, pair: Int32[Array, ""]) -> _Satellite:
    """The satellite of a pair row · satellites + satellite."""
    state, many = cache.retrieval, len(clusters.satellites)
    row, member = pair // many, pair % many
    layer, head, pivot = (jnp.asarray(x)[member] for x in np.array(clusters.satellites).T)
    watching = jnp.asarray(clusters.pivots)[pivot, 1]
    return _Satellite(
        layer=layer, head=head, room=state.room[row, member], here=cache.start[layer, row, head], offset=state.offset[row, member],
        there=cache.start[layer, row, watching], ranks=jnp.cumsum(of_bits(state.asked[row, member]), dtype=jnp.int32),
    )  # fmt: skip


def _overwrite(pools: PyTree, cache: Cache, encode: Stored, theirs: _Satellite, *, heads: int) -> PyTree:
    """One satellite's prompt slots, block by block."""
    state, of_head = cache.retrieval, dict(layer=theirs.layer, head=theirs.head, heads=heads)

    def block(j, pools):
        k, v, pos, slot_state = pools
        at, source, i = theirs.block(pos, j)
        target = jnp.where(i < theirs.room, theirs.here + i, cache.slots)
        keys = stored(encode.keys, state.host.take(state.k, source), at, **of_head)
        values = stored(encode.values, state.host.take(state.v, source), at, **of_head)
        return (
            jax.tree.map(lambda x, new: x.at[target].set(new.astype(x.dtype), mode="drop"), k, keys),
            encode.store_values(v, target, values),
            pos.at[target].set(at.astype(pos.dtype), mode="drop"),
            jax.tree.map(lambda x: x.at[target].set(0, mode="drop"), slot_state),  # tokens as they came: nothing is merged
        )

    return lax.fori_loop(0, theirs.blocks, block, pools)
