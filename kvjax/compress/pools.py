"""The pools of a cache: empty, and with the slots that stay written in, a layer of a row at a time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Int32, PyTree

from kvjax.cache.kv_cache import SlotState
from kvjax.codec import Codec
from kvjax.compress.layer_rows import LayerRows, Side
from kvjax.encode.tail import put_rows
from kvjax.kernels.compact import host, pick
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled
from kvjax.protocols import Decoder, Placement
from kvjax.slot_positions import unnumbered
from kvjax.types import Indices, Keys, position_dtype

#: A pool that NumPy writes in place, or arrays of JAX.
Pool = host.Pool | PyTree


@dataclass(frozen=True)
class Pools:
    """Attributes:
    by_slot: a row a slot: positions, state, and keys and values where each slot is stored by itself.
    by_page: keys, values whose codes are of several slots or of all heads.
    elsewhere: values that `placement` holds; None where they are on the device.
    numbered: whether positions are stored.   slots: of every pool.
    """

    by_slot: Mapping[str, Pool]
    by_page: Mapping[str, Pool]
    elsewhere: PyTree | None
    placement: Placement
    numbered: bool
    slots: int

    @classmethod
    def empty(cls, pre: Prefilled, policy: Policy, slots: int, *, numbered: bool) -> "Pools":
        """For what a policy leaves of prompts, and nothing in them."""
        pools, placement = dict(_made(pre, policy, slots, numbered)), policy.encode.placement
        elsewhere = None if placement.on_device else pools.pop("v")
        names = [name for name, codec in zip("kv", policy.encode.codecs, strict=True) if _in_pages(codec)]
        by_page = {name: pools.pop(name) for name in names}
        return cls(pools, by_page, elsewhere, placement, numbered, slots)

    def written(self, rows: LayerRows, start: Int32[np.ndarray, "1 h"]) -> "Pools":
        """With what a row leaves in a layer, from the slots `start` on; these pools are used up."""
        where = rows.order, start, rows.count
        by_slot = _write(self.by_slot, {name: self._stored(rows, name) for name in self.by_slot}, *where)
        by_page = {name: _write_pages(pool, getattr(rows, name), *where, self.slots) for name, pool in self.by_page.items()}
        elsewhere = self.elsewhere
        if elsewhere is not None:
            elsewhere = self.placement.adopt(_write_elsewhere(self.placement, elsewhere, rows.v.x, *where), elsewhere)
        return replace(self, by_slot=by_slot, by_page=by_page, elsewhere=elsewhere)

    def _stored(self, rows: LayerRows, name: str) -> PyTree:
        """What of all slots of a row is stored by slot under a name."""
        if name == "state":
            return rows.state
        if name == "pos":
            return rows.pos if self.numbered else np.zeros((*rows.pos.shape, 0), rows.pos.dtype)
        return _encoded(getattr(rows, name), rows.pos)

    def given(self) -> dict[str, PyTree]:
        """The pools as a cache has them; nobody may write them any more."""
        pools = host.given({**self.by_slot, **self.by_page})
        return pools if self.elsewhere is None else pools | {"v": self.elsewhere}


def _in_pages(codec: Codec) -> bool:
    return codec.page > 1 or codec.across_heads


def _made(pre: Prefilled, policy: Policy, slots: int, numbered: bool) -> Mapping[str, Pool]:
    """Pools to write into: in a CPU's memory, where they need no program of their size, if the prompts and all pools are there."""
    make = partial(empty_pools, pre.decoder, policy, slots, pre.rows[0].k[0].dtype, numbered=numbered)
    if policy.encode.placement.on_device and host.reaches([row.k for row in pre.rows]):
        return host.empty(make)
    return make()


def empty_pools(decoder: Decoder, policy: Policy, slots: int, dtype: DTypeLike, *, numbered: bool) -> dict[str, PyTree]:
    """Zeroed pools for keys, values, positions (stored if `numbered`) and state; `dtype` is that of a prompt's keys and values."""
    positions = jnp.int32 if policy.encode.positions.at_reading else position_dtype(decoder.max_positions)
    k, v = policy.encode.empty(slots, decoder.head_dim, dtype)
    return {
        "k": k,
        "v": v,
        "pos": jnp.zeros(slots, positions) if numbered else unnumbered(slots, positions),
        "state": _empty_state(policy, slots),
    }


def _empty_state(policy: Policy, slots: int) -> SlotState:
    """The scorer's state travels with its slots only if something is evicted while decoding."""
    one_region = (1, 1, slots)
    score = policy.decode_score.init(one_region) if policy.when.decoding else ()
    score, merge = jax.tree.map(lambda x: x[0, 0], (score, policy.merge.init(one_region)))
    return SlotState(score=score, merge=merge, bias=jnp.zeros(slots, jnp.float32) if policy.merge.biased else None)


def _encoded(side: Side, pos: Indices) -> PyTree:
    """Keys or values as they are stored; nothing is computed where that is as they are."""
    return side.x if side.codec.dense else _rows_of(side.codec, side.x, pos, side.fitted)


@jax.jit
def _rows_of(codec, x, pos, fitted):
    return codec.encode(x, pos, fitted)


def _write(
    pools: Mapping[str, Pool], rows: dict[str, PyTree], order: Indices, start: np.ndarray, count: Indices
) -> Mapping[str, Pool]:
    """One layer's kept slots written into the pools."""
    if not any(isinstance(pool, host.Pool) for pool in pools.values()):
        return _written(pools, rows, order, start, count)
    for name, pool in pools.items():
        host.pick(pool, rows[name], order, start, count)
    return pools


@partial(jax.jit, donate_argnames=("pools",))
def _written(pools, rows, order, start, count):
    """It compiles for every size of a pool, so it does nothing else."""
    return pick(pools, rows, order, start, count)


def _write_pages(pool: Pool, side: Side, order: Indices, start: np.ndarray, count: Indices, slots: int) -> Pool:
    """The pages of one layer's kept slots that are coded written into a pool, in position order."""
    rows, coded = _pages_of(side.codec, side.window, side.x, side.fitted, order, count)
    if not isinstance(pool, host.Pool):
        return _written_pages(pool, rows, start, coded, slots=slots)
    host.put(pool, rows, start, coded, slots)
    return pool


@jax.jit
def _pages_of(codec, window, x, fitted, order, count):
    """The pages of a layer's kept slots, zeros behind a head's last, and how many slots of each head are coded."""
    n = order.shape[-1]
    order = jnp.pad(order, ((0, 0), (0, 0), (0, -n % codec.page)), mode="edge")
    there = jnp.arange(order.shape[-1], dtype=jnp.int32) < count[..., None]
    kept = jnp.where(there[..., None], jnp.take_along_axis(x, order[..., None], 2), 0)
    rows = codec.encode(kept, order, fitted)
    return rows, count if window is None else window.coded(count)


@partial(jax.jit, donate_argnames=("pool",), static_argnames=("slots",))
def _written_pages(pool, rows, start, count, *, slots):
    return put_rows(pool, rows, start, count, slots)


@partial(jax.jit, donate_argnames=("store",), static_argnames=("placement",))
def _write_elsewhere(placement, store, rows: Keys, order, start, count):
    """Write one layer's kept values into a store that lives elsewhere."""
    return placement.pick(store, rows, order, start, count)
