"""From one cache, or one a row, to a sharded one: who holds what, and every device's part cut out."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Int32, PyTree

from kvjax.cache.balance import balance
from kvjax.cache.kv_cache import BY_ROW, KVCache
from kvjax.cache.layout import resize
from kvjax.cache.mesh import check_divides, of_process, sizes
from kvjax.cache.retriever_state import RetrieverState
from kvjax.cache.sharded import ShardedCache, check_unsharded
from kvjax.cache.stacking import stack
from kvjax.placement.store import is_store, on_host


@dataclass(frozen=True)
class Assignment:
    """Which rows each group holds, and which KV heads of every layer each device of a group: int32 [rows, b], [devices, L, h]."""

    rows: Int32[np.ndarray, "groups b"]
    heads: Int32[np.ndarray, "devices l h"]


def assign(slots: np.ndarray, mesh: Mesh | AbstractMesh) -> Assignment:
    """Rows to groups, then each group's heads to its devices, as even as `balance` makes it.

    Args:
        slots: planned slots, int [L, B, H].   mesh: from `kvjax.mesh`.

    Raises:
        ValueError: a mesh that does not divide the rows or the KV heads.
    """
    (groups, devices), (_, rows, heads) = sizes(mesh), slots.shape
    check_divides(mesh, rows, heads)
    by_row = balance(slots.sum((0, 2))[None], groups)[:, 0]
    return Assignment(rows=by_row, heads=np.concatenate([balance(slots[:, mine].sum(1), devices) for mine in by_row]))


def shard(cache: KVCache | Sequence[KVCache], mesh: Mesh) -> ShardedCache:
    """The cache over the devices of a mesh: its rows by groups, its KV heads by the devices of a group.

    Every device gets a packed pool of its own regions alone, all pools of one size class. Heads are shared out anew in every layer,
    so that devices hold as many slots as each other, however uneven heads are. Positions are stored for every slot: XLA's CPU
    compiler ends the process where a program on a mesh passes on an array of size 0.

    Args:
        cache: from `compress`, `extend` or `decode`; or a cache for each row, where a retriever keeps a state.
        mesh: from `kvjax.mesh`.

    Raises:
        TypeError: what is no cache, a cache that is sharded already.
        ValueError: an empty list; a mesh that does not divide the rows or the KV heads; values in host memory; a cache in parts;
            between several head groups what is of all heads together: evidence and state of decode stages, retrievers, mergers,
            fitted codecs.

    Example:
        cache = kvjax.shard(kvjax.compress(pre, policy), kvjax.mesh(rows=2, heads=4))
        out = kvjax.decode(models.shard(lm, cache.mesh), cache, policy)
    """
    given = [cache] if isinstance(cache, KVCache | ShardedCache) else list(cache)
    if not given:
        raise ValueError("expected a cache, or a list with a cache for each row; got an empty list")
    for one in given:
        check_unsharded(one)
    given = of_process(given)
    caches = [one.numbered() for one in given]
    slots = np.concatenate([np.maximum(c.lengths, 1) for c in caches], 1)
    mine = assign(slots, mesh)
    for each in caches:
        _check(each, sizes(mesh)[1], one=len(caches) == 1)
    if len(caches) > 1 and len(caches) != slots.shape[1]:
        raise ValueError(f"expected one cache, or one for each row; got {len(caches)} caches of {slots.shape[1]} rows")
    reserve = max(_asked(caches, mine, place, mesh) for place in range(mesh.size))
    here = [place for place, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    parts = {place: _part(caches, mine, place, mesh, reserve) for place in here}
    return ShardedCache.of(parts, mine.heads, mesh, tuple(tuple(row.tolist()) for row in mine.rows))


def _check(cache: KVCache, heads: int, *, one: bool) -> None:
    """Raise ValueError for what cannot be cut apart."""
    if cache.parts:
        raise ValueError("a cache in parts is not sharded: compress with a policy of one storage, such as encode=Stored()")
    if not cache.placement.on_device or any(on_host(x) for x in jax.tree.leaves(cache, is_leaf=is_store)):
        raise ValueError("a cache with values in host memory is not sharded: compress with placement=OnDevice()")
    if any(jnp.ndim(x) == 0 for x in jax.tree.leaves(cache)):
        raise ValueError("a cache whose state has a number of all rows together is not sharded")
    if one and cache.start.shape[1] > 1 and isinstance(cache.retrieval, RetrieverState):
        raise ValueError("a retriever's state is not cut into rows: compress every prompt by itself and shard the list of caches")
    of_all = {name: getattr(cache, name) for name in ("evidence", "memory", "retrieval", "fitted")}
    held = [name for name, x in of_all.items() if jax.tree.leaves(x)]
    if heads > 1 and held:
        raise ValueError(
            f"the cache keeps {', '.join(held)} of all KV heads of a layer, which {heads} groups of heads would cut: "
            "use kvjax.mesh(rows=...), or a policy that evicts after the prompt alone and reads all slots"
        )


def _asked(caches: list[KVCache], mine: Assignment, place: int, mesh: Mesh) -> int:
    """Slots that a device's regions ask for, alignment included (`plan_regions`)."""
    capacity = np.concatenate([np.asarray(c.capacity) for c in caches], 1)
    own = _cut(capacity, mine.rows[place // sizes(mesh)[1]], mine.heads[place])
    return int(np.maximum(own, 1).sum()) + own.size * (caches[0].align - 1)


def _part(caches: list[KVCache], mine: Assignment, place: int, mesh: Mesh, reserve: int) -> KVCache:
    """One device's cache."""
    rows, heads = mine.rows[place // sizes(mesh)[1]], mine.heads[place]
    if len(caches) > 1:
        stacked = stack([caches[row] for row in rows])
        return take(stacked, np.arange(len(rows)), heads, reserve, keep_retrieval=True)
    return take(caches[0], rows, heads, reserve, keep_retrieval=len(rows) == caches[0].start.shape[1])


def take(cache: KVCache, rows: np.ndarray, heads: np.ndarray, reserve_slots: int, *, keep_retrieval: bool) -> KVCache:
    """Some rows, and of every layer some KV heads (int32 [L, h]), as a cache of its own in a pool of at least so many slots."""
    regions = {name: _cut(np.asarray(getattr(cache, name)), rows, heads) for name in ("start", "length", "capacity", "budget")}
    by_row = {name: getattr(cache, name)[rows] for name in BY_ROW}
    of_layers = {name: jax.tree.map(lambda x: x[:, rows], getattr(cache, name)) for name in ("memory", "fitted")}
    sub = cache.replace(
        **{name: jnp.asarray(x) for name, x in regions.items()},
        **by_row,
        **of_layers,
        evidence=jax.tree.map(lambda x: x[rows], cache.evidence),
        tails=jax.tree.map(lambda x: _cut(x, rows, heads), cache.tails),
        retrieval=cache.retrieval if keep_retrieval else (),
    )
    return resize(sub, regions["capacity"], reserve_slots)


def _cut(x: PyTree, rows: np.ndarray, heads: np.ndarray) -> PyTree:
    """[L, B, H, ...] of some rows and of every layer's heads: [L, b, h, ...]."""
    return x[np.arange(len(heads))[:, None, None], rows[None, :, None], heads[:, None, :]]
