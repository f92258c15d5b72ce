"""Moving slots in the memory of a CPU, by NumPy: nothing is compiled, whatever a pool's size.

A pool is made as NumPy arrays (`empty`), written in place (`pick`, `put`, `move_regions`), and given to JAX without a copy
(`given`).
"""

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import Array, PyTree

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


def empty(shapes: PyTree) -> PyTree:
    """Arrays of zeros of these shapes and dtypes; memory is taken when it is written."""
    return jax.tree.map(_zeros, shapes)


def _zeros(like: PyTree) -> np.ndarray:
    size = int(np.prod(like.shape)) * np.dtype(like.dtype).itemsize
    raw = np.zeros(size + _ALIGN, np.uint8)
    first = -raw.ctypes.data % _ALIGN
    return raw[first : first + size].view(like.dtype).reshape(like.shape)


def held(pools: PyTree) -> bool:
    """Whether pools are made by `empty`."""
    return any(isinstance(x, np.ndarray) for x in jax.tree.leaves(pools))


def given(pools: PyTree) -> PyTree:
    """The pools as JAX's arrays, in the same memory: nobody may write them any more."""
    return jax.tree.map(jax.device_put, pools)


def pick(pools: PyTree, rows: PyTree, order: Array, start: np.ndarray, count: Array) -> None:
    """See `api.pick`; in place, and nothing but the regions is written."""
    order, count = np.asarray(order), np.asarray(count)

    def write(pool: np.ndarray, x: Array) -> None:
        x = np.asarray(x)
        for r in np.ndindex(count.shape):
            which, to = order[r][: count[r]], pool[start[r] : start[r] + count[r]]
            if x.dtype == pool.dtype:
                np.take(x[r], which, axis=0, out=to, mode="clip")
            else:
                to[...] = x[r][which]

    jax.tree.map(write, pools, rows)


def put(pools: PyTree, rows: PyTree, start: np.ndarray, count: Array, slots: int) -> None:
    """The first `count` slots of rows [b, h, n / page, ...] into pools of `slots` slots, in place: whole pages, from `start` on."""
    count = np.asarray(count)

    def write(pool: np.ndarray, x: Array) -> None:
        x, page = np.asarray(x), slots // pool.shape[0]
        for r in np.ndindex(count.shape):
            first, many = start[r] // page, -(-count[r] // page)
            pool[first : first + many] = x[r][:many]

    jax.tree.map(write, pools, rows)


def move_regions(source: Array, old: Array, new: Array, length: Array, *, held: int, slots: int) -> np.ndarray:
    """See `api.move_regions`, of one pool of `held` slots into one of `slots`, both perhaps in whole pages."""
    source = np.asarray(source)
    page = held // source.shape[0]
    out = _zeros(jax.ShapeDtypeStruct((slots // page, *source.shape[1:]), source.dtype))
    many = -(-np.asarray(length) // page)
    for o, n, m in zip(np.asarray(old).flat, np.asarray(new).flat, many.flat, strict=True):
        out[n // page : n // page + m] = source[o // page : o // page + m]
    return out
