"""Pack: the slots that stay, written into a pool of just their size, layer by layer."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.cache.kv_cache import SlotState
from kvjax.codec import Codec
from kvjax.compress.decision import Decision
from kvjax.encode.positions import PositionPolicy
from kvjax.encode.tail import Tail, filled, put_rows
from kvjax.encode.window import Window
from kvjax.evidence import Evidence
from kvjax.kernels.compact import host, pick
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.protocols import Decoder
from kvjax.reach import in_reach
from kvjax.slot_positions import unnumbered
from kvjax.stage import Merger
from kvjax.types import Indices, Keys, Values, position_dtype, size_class
from kvjax.view import LayerView


def pack(
    pre: Prefilled, policy: Policy, decided: Sequence[Decision], start: np.ndarray, slots: int, *, numbered: bool = True
) -> dict[str, PyTree]:
    """Fields of the cache: the pools (keys, values, positions, state) with every kept slot in its place, the merger's memory and
    what codecs were fitted to, leaves [L, B, ...]. Positions are stored if `numbered`."""
    pools = _pools_for(pre, policy, slots, numbered)
    placement, positions, memory, fitted, tails = policy.encode.placement, policy.encode.positions, [], [], []
    elsewhere = None if placement.on_device else pools.pop("v")
    codecs = zip("kv", policy.encode.codecs, strict=True)
    paged = {name: pools.pop(name) for name, codec in codecs if codec.page > 1 or codec.across_heads}
    for layer, of_model in enumerate(pre.layers):  # in the order of the regions: a block may run into the next one
        merge, encode = policy.merge.at(of_model), policy.encode.at(of_model)
        for r, (row, d) in enumerate(zip(pre.rows, decided, strict=True)):
            k = positions.of_prompt(row.k[layer], row.evidence[layer])
            view, left = _merged(merge, k, row, d, layer, positions)
            memory.append(left)
            pos, order, count = _order(d.keep, row.pos, layer)
            state = SlotState(score=view.scored if policy.when.decoding else (), merge=view.state, bias=view.bias)
            turned = _turned(positions, view.k, d.in_all, row.length, rope=pre.decoder.rope, layer=np.int32(layer))
            sides = zip(encode.codecs, (turned, view.v), strict=True)
            fitted.append(tuple(_fitted(c, x, d, layer, row.evidence[layer]) for c, x in sides))
            coded = dict(zip("kv", zip(encode.codecs, encode.windows, (turned, view.v), fitted[-1], strict=True), strict=True))
            tails.append(tuple(() if w is None else _tail(w, x, order, count, encode.sinks) for _, w, x, _ in coded.values()))
            rows = {"pos": pos if numbered else np.zeros((*pos.shape, 0), pos.dtype), "state": state}
            rows |= {name: _encoded(codec, x, params, pos) for name, (codec, _, x, params) in coded.items() if name in pools}
            where = order, start[layer, r][None], count
            pools = _write(pools, {name: rows[name] for name in pools}, *where)
            for name, pool in paged.items():
                paged[name] = _write_pages(pool, *coded[name], *where, slots=slots)
            if elsewhere is not None:
                stored = _write_elsewhere(placement, elsewhere, view.v, *where)
                elsewhere = placement.adopt(stored, elsewhere)

    def by_layer(*x):
        return jnp.concatenate(x).reshape(len(pre.layers), len(pre.rows), *x[0].shape[1:])

    memory, fitted, tails = (jax.tree.map(by_layer, *x) for x in (memory, fitted, tails))
    stored = host.given(pools | paged) | ({} if elsewhere is None else {"v": elsewhere})
    tails = tuple(x and Tail(*x, policy.encode.sinks) for x in tails)
    return stored | {"memory": memory, "fitted": fitted, "tails": tails}


def _pools_for(pre: Prefilled, policy: Policy, slots: int, numbered: bool) -> dict[str, host.Pool | PyTree]:
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


class _Merged(NamedTuple):
    """What of a layer's view is packed."""

    k: Keys
    v: Values
    scored: PyTree
    state: PyTree = ()
    bias: PyTree = None


def _merged(
    merge: Merger, k: Keys, row: PrefilledRow, d: Decision, layer: int, positions: PositionPolicy
) -> tuple[_Merged | LayerView, PyTree]:
    """A layer's view after its merges, and the merger's memory; nothing is computed where nothing is rewritten.

    What the layer's sliding window has left behind is merged into nothing.
    """
    v, scored = row.v[layer], d.state[layer] if d.state else ()
    if not merge.rewrites:
        return _Merged(k, v, scored), ()
    keep = d.in_all
    merge = merge if type(merge).sized is Merger.sized else merge.sized(_widest(keep.sum(-1), k.shape[2]))
    given = () if merge.state_of is None else scored
    evidence = row.evidence[layer]
    window = None if positions.ranked else evidence.window
    seen = evidence.replace(data={need.key: evidence.data[need.key] for need in merge.needs}) if merge.needs else None
    view, left = _rewritten(merge, k, v, row.length, row.pos, keep, d.scores, given, seen, window, layer=np.int32(layer))
    return view if merge.state_of is not None else view.replace(scored=scored), left


def _widest(count: Int32[Array, "l b h"], n: int) -> int:
    """A size class of the slots that heads keep; all n of a prompt inside a traced program, which cannot know."""
    return n if isinstance(count, jax.core.Tracer) else min(n, size_class(int(np.asarray(count).max()), steps=8))


@jax.jit
def _rewritten(merge, k, v, length, pos, keep, scores, scored, seen, window, *, layer):
    shape = k.shape[:3]
    view = LayerView.of_prompt(length, shape, k=k, v=v, state=merge.init(shape), pos=pos).replace(scored=scored, seen=seen)
    view = view.replace(valid=view.valid & (keep[layer] | in_reach(view.pos, length, window)))
    if merge.biased:
        view = view.replace(bias=jnp.zeros(shape, jnp.float32))
    return merge(view, keep[layer], scores[layer], merge.begin(shape[0]))


def _turned(positions: PositionPolicy, k: Keys, keep, length, *, rope, layer) -> Keys:
    """Keys where `positions` wants those that stay; nothing is computed where that is where they are."""
    return _keys_of(positions, k, keep, length, rope=rope, layer=layer) if positions.turns else k


@partial(jax.jit, static_argnames="rope")
def _keys_of(positions, k, keep, length, *, rope, layer):
    return positions.packed(k, keep[layer], length, rope)


def _fitted(codec: Codec, x: Keys, d: Decision, layer: int, evidence: Evidence) -> PyTree:
    """What a codec is fitted to on the slots of a layer that stay; nothing is computed where it is never fitted."""
    return _fit(codec, x, d.fitted_on, d.in_all, np.int32(layer), evidence) if codec.fitted else ()


@jax.jit
def _fit(codec, x, keep, stays, layer, evidence):
    return codec.fit_to(x, keep[layer], stays[layer], evidence)


def _encoded(codec: Codec, x: Keys, params: PyTree, pos: Indices) -> PyTree:
    """Keys or values as they are stored; nothing is computed where that is as they are."""
    return x if codec.dense else _rows_of(codec, x, pos, params)


@jax.jit
def _rows_of(codec, x, pos, params):
    return codec.encode(x, pos, params)


def _order(keep: Bool[Array, "l b h n"], pos: Int32[Array, "b n"] | None, layer: int) -> tuple[Indices, Indices, Indices]:
    """A layer's positions [b, h, n]; its kept slots in position order [b, h, n]; how many of each head [b, h]."""
    if not host.reaches([keep, pos]):
        return _ordered(keep, pos, np.int32(layer))
    keep = np.asarray(keep)[layer]
    pos = np.arange(keep.shape[-1], dtype=np.int32) if pos is None else np.asarray(pos)[:, None]
    return np.broadcast_to(pos, keep.shape), *host.kept_first(keep)


@jax.jit
def _ordered(keep, pos, layer):
    """The same where JAX has them."""
    keep = keep[layer]
    ranks = jnp.cumsum(keep, -1, dtype=jnp.int32)
    wanted = jnp.arange(1, keep.shape[-1] + 1, dtype=jnp.int32)
    find = jax.vmap(jax.vmap(partial(jnp.searchsorted, side="left"), (0, None)), (0, None))
    pos = jnp.broadcast_to(wanted - 1 if pos is None else pos[:, None], keep.shape)
    return pos, jnp.minimum(find(ranks, wanted), keep.shape[-1] - 1).astype(jnp.int32), ranks[..., -1]


def _write(
    pools: dict[str, host.Pool | PyTree], rows: dict[str, PyTree], order: Indices, start: np.ndarray, count: Indices
) -> dict[str, host.Pool | PyTree]:
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


@partial(jax.jit, static_argnames=("sinks",))
def _tail(window, x, order, count, sinks):
    """A layer's exact slots among those that stay, and how many are coded."""
    return filled(x, order, count, window, sinks), window.coded(count)


def _write_pages(
    pool: host.Pool | PyTree, codec: Codec, window: Window | None, x: Keys, params: PyTree, order: Indices, start: np.ndarray,
    count: Indices, *, slots: int,
) -> host.Pool | PyTree:  # fmt: skip
    """The pages of one layer's kept slots that are coded written into a pool, in position order."""
    rows, coded = _pages_of(codec, window, x, params, order, count)
    if not isinstance(pool, host.Pool):
        return _written_pages(pool, rows, start, coded, slots=slots)
    host.put(pool, rows, start, coded, slots)
    return pool


@jax.jit
def _pages_of(codec, window, x, params, order, count):
    """The pages of a layer's kept slots, zeros behind a head's last, and how many slots of each head are coded."""
    n = order.shape[-1]
    order = jnp.pad(order, ((0, 0), (0, 0), (0, -n % codec.page)), mode="edge")
    there = jnp.arange(order.shape[-1], dtype=jnp.int32) < count[..., None]
    kept = jnp.where(there[..., None], jnp.take_along_axis(x, order[..., None], 2), 0)
    rows = codec.encode(kept, order, params)
    return rows, count if window is None else window.coded(count)


@partial(jax.jit, donate_argnames=("pool",), static_argnames=("slots",))
def _written_pages(pool, rows, start, count, *, slots):
    return put_rows(pool, rows, start, count, slots)


@partial(jax.jit, donate_argnames=("store",), static_argnames=("placement",))
def _write_elsewhere(placement, store, rows, order, start, count):
    """Write one layer's kept values into a store that lives elsewhere."""
    return placement.pick(store, rows, order, start, count)
