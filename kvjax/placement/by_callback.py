"""Values in NumPy rows on the Python side, reached by callbacks: what a device without memory of its own beside it can use.

Only indices, weights and new rows cross; the weighted sums are computed where the rows are. A reading that is begun runs in a
thread of the host, while the program goes on.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import io_callback
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.kernels.compact import Moves
from kvjax.placement.begun import BegunReads
from kvjax.placement.lists import sources
from kvjax.placement.on_device import OnDevice
from kvjax.placement.on_host import OnHost
from kvjax.placement.store import Store

_handles = itertools.count()
#: Rows by handle, as long as a cache that owns them lives.
_held: "weakref.WeakValueDictionary[int, _Rows]" = weakref.WeakValueDictionary()


class _Rows:
    """NumPy rows, how often they were written, and what is being read of them."""

    def __init__(self, rows: np.ndarray):
        self.rows, self.writes, self.begun = rows, 0, BegunReads()

    def read(self, slots: np.ndarray) -> np.ndarray:
        """The rows of `slots`; a slot beyond them reads the last one."""
        return self.rows[np.minimum(slots, len(self.rows) - 1)]

    def asked(self, slots: np.ndarray) -> tuple[int, tuple[int, ...], bytes]:
        """What tells one reading from another."""
        return self.writes, slots.shape, slots.tobytes()


@jax.tree_util.register_pytree_node_class
class HostRows(Store):
    """A store on the Python side: as a pytree it is one small array (handle, writes so far); who owns the rows is no part of it.

    The number of writes goes from each write to the next reading, so that a program reads what it wrote, and a store that another
    program has written since is found out, as a donated array would be.

    Attributes:
        state: int32 [2], handle and writes.   shape, dtype: of the rows.   owner: what keeps them alive, None inside a program.
    """

    def __init__(self, state: PyTree, shape: tuple[int, int], dtype: DTypeLike, owner: object = None):
        self.state, self.shape, self.dtype, self.owner = state, shape, np.dtype(dtype), owner

    def tree_flatten(self):
        return (self.state,), (self.shape, self.dtype)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        return cls(*leaves, *static)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows in host memory."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def rows(self) -> Float[np.ndarray, "s d"]:
        """The rows, after every program that writes them has ended."""
        return _find(np.asarray(self.state)).rows

    saved = rows

    @staticmethod
    def restored(rows: np.ndarray) -> "HostRows":
        return _store(np.array(rows))


def _store(rows: np.ndarray) -> HostRows:
    """A new store of these rows, owned by what it returns."""
    owner, handle = _Rows(rows), next(_handles)
    _held[handle] = owner
    state = jnp.asarray([handle, 0], jnp.int32)
    # bound to its device, as the state that a program gives back is: the next program would be another one otherwise
    return HostRows(jax.device_put(state, state.sharding), rows.shape, rows.dtype, owner)


def _find(state: np.ndarray) -> _Rows:
    """The rows a state names, if they are as that state left them."""
    found = _held.get(int(state[0]))
    if found is None:
        raise RuntimeError("the host rows of this cache are gone: keep the cache that owns them until its programs have ended")
    return _unchanged(found, state)


def _unchanged(found: _Rows, state: np.ndarray) -> _Rows:
    if found.writes != state[1]:
        raise RuntimeError("the host rows of this cache were written by a later program: go on with the cache it gave back")
    return found


def _written(state: np.ndarray, slots: np.ndarray, new: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The state after `new` of the rows in slots. Rows whose cache was let go meanwhile are no longer read by anybody: nothing is
    written then, where an error would end every ordered callback after this one."""
    found = _held.get(int(state[0]))
    if found is not None:
        rows, kept = _unchanged(found, state).rows, slots < len(found.rows)
        rows[slots[kept]] = new(rows)[kept]
        found.writes += 1
    return np.array([state[0], state[1] + 1], np.int32)


def _put(state, slots, new):
    """Rows to slots; the new state."""
    state, slots, new = map(np.asarray, (state, slots, new))
    return _written(state, slots, lambda rows: new)


def _copy(state, source, target):
    """Rows over rows, all read before any is written; the new state."""
    state, source, target = map(np.asarray, (state, source, target))
    return _written(state, target, lambda rows: rows[np.minimum(source, len(rows) - 1)])


def _begin(state, slots):
    """A thread starts to read; nothing where the rows are gone, or were written meanwhile: `_take` says so."""
    state, slots = np.asarray(state), np.array(slots)  # a copy: the program's own is gone when the thread reads it
    found = _held.get(int(state[0]))
    if found is not None and found.writes == state[1]:
        nbytes = slots.size * found.rows.shape[1] * found.rows.itemsize
        found.begun.begin(found.asked(slots), lambda: found.read(slots), nbytes)
    return np.int32(0)


def _take(state, slots, *after):
    """Rows of slots, waited for where a thread reads them."""
    del after
    found, slots = _find(np.asarray(state)), np.asarray(slots)
    return found.begun.take(found.asked(slots), lambda: found.read(slots))


def _weigh(state, slots, weights):
    rows, weights = _find(np.asarray(state)).read(np.asarray(slots)).astype(np.float32), np.asarray(weights)
    b, h, g, t, n = weights.shape
    return (weights.reshape(b, h, g * t, n) @ rows).reshape(b, h, g, t, -1)


@struct.dataclass
class ByCallback(OnHost):
    """Values in NumPy rows on the Python side, by ordered callbacks: writes and weighted sums happen in the order of the program.

    The rows live as long as the cache they belong to. A callback costs some tens of microseconds, so this placement is for devices
    whose runtime has no host memory space; elsewhere `OnHost` is faster.
    """

    reads_ahead: ClassVar[bool] = True

    def empty(self, slots: int, d: int, dtype: DTypeLike) -> HostRows:
        return _store(np.zeros((slots, d), dtype))

    def append(self, store: HostRows, slots: Int32[Array, " m"], rows: Float[Array, "m d"]) -> HostRows:
        return _write(store, _put, slots, rows.astype(store.dtype))

    def begin(self, store: HostRows, slots: Int32[Array, "*shape"]) -> Int32[Array, ""]:
        return io_callback(_begin, jax.ShapeDtypeStruct((), jnp.int32), store.state, slots)

    def take(self, store: HostRows, slots: Int32[Array, "*shape"], after: PyTree = ()) -> Float[Array, "*shape d"]:
        found = jax.ShapeDtypeStruct((*slots.shape, store.shape[1]), store.dtype)
        awaited = [x.reshape(-1)[:1] for x in jax.tree.leaves(after)]
        return jax.pure_callback(_take, found, store.state, slots, *awaited)

    pick = OnDevice.pick

    def compact(self, store: HostRows, start: Int32[Array, "b h"], moves: Moves) -> HostRows:
        def where(x):
            return _listed(start[..., None] + x, moves.count, store)

        return _write(store, _copy, where(moves.sources), where(moves.targets))

    def rewrite(
        self, store: HostRows, rows: Float[Array, "b h n d"], slots: Int32[Array, "b h n"], count: Int32[Array, "b h"]
    ) -> HostRows:
        return self.append(store, _listed(slots, count, store), rows.reshape(-1, rows.shape[-1]))

    def weighted_sum(
        self, store: HostRows, start: Int32[Array, "b h"], weights: Float32[Array, "b h g t n"]
    ) -> Float32[Array, "b h g t d"]:
        return self.weighted_sum_by_lists(store, start, weights)

    def weighted_sum_of_list(
        self, store: HostRows, slots: Int32[Array, "b h n"], weights: Float32[Array, "b h g t n"]
    ) -> Float32[Array, "b h g t d"]:
        found = jax.ShapeDtypeStruct((*weights.shape[:-1], store.shape[1]), jnp.float32)
        return io_callback(_weigh, found, store.state, slots, weights, ordered=True)

    def relocate(self, store: HostRows, old: Array, new: Array, length: Array, slots: int) -> HostRows:
        return _store(store.rows()[sources(old, new, length, slots)])

    def concatenate(self, stores: list[HostRows]) -> HostRows:
        return _store(np.concatenate([s.rows() for s in stores]))

    def adopt(self, new: HostRows, old: HostRows) -> HostRows:
        return HostRows(new.state, new.shape, new.dtype, old.owner)


def _listed(slots: Int32[Array, "b h n"], count: Int32[Array, "b h"], store: HostRows) -> Int32[Array, " r"]:
    """Every region's list in one, with all but its first `count` entries pointing nowhere (left out when written)."""
    return jnp.where(jnp.arange(slots.shape[-1]) < count[..., None], slots, store.shape[0]).reshape(-1)


def _write(store: HostRows, write: PyTree, *operands: Array) -> HostRows:
    """The store after an ordered write."""
    state = io_callback(write, jax.ShapeDtypeStruct((2,), jnp.int32), store.state, *operands, ordered=True)
    return HostRows(state, store.shape, store.dtype, store.owner)
