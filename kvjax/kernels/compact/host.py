"""Moving slots in the memory of a CPU, by NumPy: nothing is compiled, whatever a pool's size.

A pool is made as NumPy arrays (`empty`), written in place (`pick`, `put`), and given to JAX without a copy (`given`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.types import Indices

#: JAX takes NumPy arrays over as they are where they begin at a multiple of this many bytes.
_ALIGN = 64


def reaches(arrays: PyTree) -> bool:
    """Whether NumPy can read all of the arrays where they lie: they have values, on one CPU."""
    return all(_near(x) for x in jax.tree.leaves(arrays))


def _near(x: PyTree) -> bool:
    if not isinstance(x, jax.Array) or isinstance(x, jax.core.Tracer):
        return False
    where = x.sharding
    return isinstance(where, SingleDeviceSharding) and where.device_set.copy().pop().platform == "cpu"


@dataclass(frozen=True)
class Pool:
    """Arrays that NumPy writes, and the pytree that they become when JAX has them."""

    leaves: tuple[np.ndarray, ...]
    form: jax.tree_util.PyTreeDef


def empty(make: Callable[[], Mapping[str, PyTree]]) -> dict[str, Pool]:
    """Pools of zeros of the shapes and dtypes that `make()` has by name; memory is taken when it is written."""
    forms = {}

    def leaves() -> dict[str, list[Array]]:
        pools = {name: jax.tree.flatten(pool) for name, pool in make().items()}
        forms.update({name: form for name, (_, form) in pools.items()})
        return {name: flat for name, (flat, _) in pools.items()}

    return {name: Pool(tuple(map(_zeros, flat)), forms[name]) for name, flat in jax.eval_shape(leaves).items()}


def _zeros(like: PyTree) -> np.ndarray:
    size = int(np.prod(like.shape)) * np.dtype(like.dtype).itemsize
    raw = np.zeros(size + _ALIGN, np.uint8)
    first = -raw.ctypes.data % _ALIGN
    return raw[first : first + size].view(like.dtype).reshape(like.shape)


def given(pools: Mapping[str, Pool | PyTree]) -> dict[str, PyTree]:
    """The pools as JAX's arrays, in the same memory: nobody may write them any more. What JAX has already stays."""
    return {name: _given(pool) if isinstance(pool, Pool) else pool for name, pool in pools.items()}


def _given(pool: Pool) -> PyTree:
    return jax.tree.unflatten(pool.form, map(jax.device_put, pool.leaves))


def kept_first(keep: Bool[np.ndarray, "b h n"]) -> tuple[Int32[np.ndarray, "b h n"], Int32[np.ndarray, "b h"]]:
    """The slots kept of each head, in order, the last slot of all behind them; how many they are."""
    order = np.full(keep.shape, keep.shape[-1] - 1, np.int32)
    count = np.zeros(keep.shape[:-1], np.int32)
    for r in np.ndindex(count.shape):
        kept = np.flatnonzero(keep[r])
        count[r] = len(kept)
        order[r][: len(kept)] = kept
    return order, count


def pick(pool: Pool, rows: PyTree, order: Indices, start: np.ndarray, count: Indices) -> None:
    """See `api.pick`; in place, and nothing but the regions is written."""
    order, count = np.asarray(order), np.asarray(count)
    for to, x in zip(pool.leaves, map(np.asarray, jax.tree.leaves(rows)), strict=True):
        for r in np.ndindex(count.shape):
            which, region = order[r][: count[r]], to[start[r] : start[r] + count[r]]
            if x.dtype == to.dtype:
                np.take(x[r], which, axis=0, out=region, mode="clip")
            else:
                region[...] = x[r][which]


def put(pool: Pool, rows: PyTree, start: np.ndarray, count: Indices, slots: int) -> None:
    """The first `count` slots of rows [b, h, n / page, ...] into a pool of `slots`, in place: whole pages, from `start` on."""
    count = np.asarray(count)
    for to, x in zip(pool.leaves, map(np.asarray, jax.tree.leaves(rows)), strict=True):
        page = slots // to.shape[0]
        for r in np.ndindex(count.shape):
            first, many = start[r] // page, -(-count[r] // page)
            to[first : first + many] = x[r][:many]


def move_regions(source: Array, old: Array, new: Array, length: Array, *, held: int, slots: int) -> np.ndarray:
    """See `api.move_regions`, of one pool of `held` slots into one of `slots`, both perhaps in whole pages."""
    source = np.asarray(source)
    page = held // source.shape[0]
    out = _zeros(jax.ShapeDtypeStruct((slots // page, *source.shape[1:]), source.dtype))
    many = -(-np.asarray(length) // page)
    for o, n, m in zip(np.asarray(old).flat, np.asarray(new).flat, many.flat, strict=True):
        out[n // page : n // page + m] = source[o // page : o // page + m]
    return out
