"""Values in pinned host memory beside the device."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.experimental.compute_on import compute_on
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.kernels import compact as kernels
from kvjax.kernels.compact.xla import each, flat
from kvjax.kernels.dispatch import compiles_for
from kvjax.kernels.weighted_values import weighted_values
from kvjax.placement.lists import list_of_ranks, sources
from kvjax.placement.on_device import OnDevice

_HOST, _DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
#: A list that crosses to the host is this part of the padded region, and at least so many slots.
_PART, _FEWEST = 16, 64
#: Most rows appended without a loop.
_UNROLLED = 16
#: Rows that cross to the host at a time where many follow each other.
_BLOCK = 2048


def _on_host(f):
    """`f(store, *operands)` run by the host next to its memory; operands and results stay there."""
    run = compute_on(f, compute_type="device_host", out_memory_spaces=_HOST)
    return lambda store, *operands: run(store, *jax.device_put(operands, _HOST))


_take = _on_host(lambda store, slots: store.at[slots].get(mode="clip"))
_weigh = _on_host(
    lambda store, slots, weights: jnp.einsum(
        "bhgtn,bhnd->bhgtd", weights, store.at[slots].get(mode="clip"), preferred_element_type=jnp.float32
    )
)

_moved = jax.jit(_take)


def _read(store: PyTree, at: Int32[Array, ""], size: int) -> Float[Array, "size d"]:
    """Rows from `at` on, on the device."""
    return jax.device_put(lax.dynamic_slice_in_dim(store, at, size), _DEVICE)


def _written(store: PyTree, rows: Float[Array, "size d"], at: Int32[Array, ""]) -> PyTree:
    """The store with rows of the device from `at` on, in place."""
    return lax.dynamic_update_slice(store, jax.device_put(rows, _HOST), (at, jnp.int32(0)))


@struct.dataclass
class OnHost(OnDevice):
    """Values in pinned host memory; the weighted sum is computed there and only its result comes back.

    The device sends indices, weights and new rows. From a GPU `weighted_sum` lists the slots with any weight, of all query heads of
    a KV head, a sixteenth of the padded region at a time; the device makes the next list while the host weighs one. What is written
    is written by the device: host computations never write in place on a GPU.
    """

    memory_kind: ClassVar[str] = "pinned_host"

    def empty(self, slots: int, d: int, dtype: DTypeLike) -> Float[Array, "s d"]:
        return jax.device_put(jnp.zeros((slots, d), dtype), _HOST)

    def append(self, store: PyTree, slots: Int32[Array, " m"], rows: Float[Array, "m d"]) -> PyTree:
        rows = rows.astype(store.dtype)

        def write(i, store):
            return _written(store, lax.dynamic_slice_in_dim(rows, i, 1), slots[i])

        return lax.fori_loop(0, len(slots), write, store, unroll=min(len(slots), _UNROLLED))

    def pick(
        self, store: PyTree, rows: Float[Array, "b h n d"], order: Int32[Array, "b h m"], start: Int32[Array, "b h"],
        count: Int32[Array, "b h"],
    ) -> PyTree:  # fmt: skip
        size = min(_BLOCK, store.shape[0])
        rows, order, start, count = flat(rows), flat(order), start.reshape(-1), count.reshape(-1)

        def block(r, i, store):
            first = jnp.minimum(start[r] + i * size, store.shape[0] - size)
            at = first - start[r] + jnp.arange(size, dtype=jnp.int32)  # what is there stays where the region has no row
            new = rows[r, order[r].at[at].get(mode="clip")].astype(store.dtype)
            mine = (at >= i * size) & (at < count[r])
            return _written(store, jnp.where(mine[:, None], new, _read(store, first, size)), first)

        return each(-(-count // size), block, store)

    def compact(self, store: PyTree, start: Int32[Array, "b h"], moves: kernels.Moves) -> PyTree:
        start, sources, targets = start.reshape(-1), flat(moves.sources), flat(moves.targets)

        def move(r, i, store):
            return _written(store, _read(store, start[r] + sources[r, i], 1), start[r] + targets[r, i])

        return each(moves.count.reshape(-1), move, store)

    def rewrite(
        self, store: PyTree, rows: Float[Array, "b h n d"], slots: Int32[Array, "b h n"], count: Int32[Array, "b h"]
    ) -> PyTree:
        rows, slots = flat(rows.astype(store.dtype)), flat(slots)
        return each(count.reshape(-1), lambda r, i, store: _written(store, rows[r, i][None], slots[r, i]), store)

    def take(self, store: PyTree, slots: Int32[Array, "*shape"], after: PyTree = ()) -> Float[Array, "*shape d"]:
        del after  # the compiler's schedule puts the host's work beside the device's
        return jax.device_put(_take(store, slots), _DEVICE)

    def weighted_sum(
        self, store: PyTree, start: Int32[Array, "b h"], weights: Float32[Array, "b h g t n"]
    ) -> Float32[Array, "b h g t d"]:
        if compiles_for() == "cpu":  # one memory: nothing crosses, and nothing is copied
            return weighted_values(jax.device_put(store, _DEVICE), start, weights)
        return self.weighted_sum_by_lists(store, start, weights)

    def weighted_sum_by_lists(
        self, store: PyTree, start: Int32[Array, "b h"], weights: Float32[Array, "b h g t n"]
    ) -> Float32[Array, "b h g t d"]:
        """As `weighted_sum`: indices and weights cross, list by list."""
        n = weights.shape[-1]
        size = max(min(n, _FEWEST), n // _PART)
        ranks = jnp.cumsum((weights > 0).any((2, 3)), -1, dtype=jnp.int32)

        def part(i):
            index = list_of_ranks(ranks, i * size, size)
            real, index = index < n, jnp.where(index < n, index, 0)  # a list's rest reads the region's first slot, by 0
            sent = jnp.take_along_axis(weights, index[:, :, None, None], -1)
            return start[..., None] + index, jnp.where(real[:, :, None, None], sent, 0.0)

        def turn(state):
            i, total, sent = state
            return i + 1, total + self.weighted_sum_of_list(store, *sent), part(i + 1)

        zeros, most = jnp.zeros((*weights.shape[:-1], store.shape[1]), jnp.float32), ranks[..., -1].max()
        return lax.while_loop(lambda state: state[0] * size < most, turn, (jnp.int32(0), zeros, part(jnp.int32(0))))[1]

    def weighted_sum_of_list(
        self, store: PyTree, slots: Int32[Array, "b h n"], weights: Float32[Array, "b h g t n"]
    ) -> Float32[Array, "b h g t d"]:
        """Σ_j weights_j · store[slots_j]; slots of weight 0 may be any."""
        return jax.device_put(_weigh(store, slots, weights), _DEVICE)

    def relocate(self, store: PyTree, old: Array, new: Array, length: Array, slots: int) -> PyTree:
        """Every region copied from where it stands to where it will stand, in a new store of `slots` rows."""
        return _moved(store, jnp.asarray(sources(old, new, length, slots)))

    def concatenate(self, stores: list) -> PyTree:
        """Stores behind one another."""
        return jax.device_put(jnp.concatenate([jax.device_put(s, _DEVICE) for s in stores]), _HOST)
