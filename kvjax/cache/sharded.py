"""One cache over several devices: each device has a `KVCache` of its own, of some rows and of some KV heads of every layer."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from flax import struct
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Int32

from kvjax.cache.balance import imbalance
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.mesh import EACH, sizes, whole
from kvjax.short_repr import attempt, counted, megabytes, one_line

#: A pytree's structure, as `jax.tree.structure` gives it.
Form = jax.tree_util.PyTreeDef


@struct.dataclass
class ShardedCache:
    """A frozen pytree: the caches of all devices, leaf beside leaf.

    Invariants: the pools of all devices have the same size class, and every device holds as many rows, and as many heads of every
    layer, as any other: one program serves all. Which rows and heads is data.

    Attributes:
        leaves: those of every device's cache, behind one another along their first axis, in the order of the mesh.
        heads: int32 [devices · L, h], which KV heads a device's regions are of.
        form: the structure of one device's cache.   mesh: the devices.
        order: for every group of rows the rows of the batch it holds.
    """

    leaves: tuple[Array, ...]
    heads: Int32[Array, "_ h"]
    form: Form = struct.field(pytree_node=False)
    mesh: Mesh = struct.field(pytree_node=False)
    order: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)

    @classmethod
    def of(cls, caches: dict[int, KVCache], heads: np.ndarray, mesh: Mesh, order: tuple[tuple[int, ...], ...]) -> "ShardedCache":
        """The caches of this process's devices, each by its place in the mesh, brought there.

        Args:
            caches: of one form and shape.   heads: int32 [devices, L, h], of all devices.
        """
        form = jax.tree.structure(next(iter(caches.values())))
        columns = zip(*(jax.tree.leaves(cache) for cache in caches.values()), strict=True)
        leaves = tuple(spread(dict(zip(caches, column, strict=True)), mesh) for column in columns)
        table = spread({place: heads[place] for place in caches}, mesh)
        return cls(leaves=leaves, heads=table, form=form, mesh=mesh, order=order)

    def __repr__(self) -> str:
        """Its sizes in one line: devices, heads, slots in use, bytes of all devices, how uneven they are."""
        return one_line(
            "ShardedCache",
            attempt(lambda: f"{sizes(self.mesh)[0]} x {sizes(self.mesh)[1]} devices"),
            attempt(lambda: " x ".join(map(counted, self.shape, ("layer", "row", "head")))),
            attempt(lambda: counted(int(self.lengths.sum()), "slot")),
            attempt(lambda: megabytes(self.nbytes)),
            attempt(lambda: f"{100 * self.imbalance:.1f}% imbalance"),
        )

    @property
    def here(self) -> dict[int, KVCache]:
        """The caches of this process's devices, by their place in the mesh; no array is copied."""
        mine = _places(self.mesh)
        parts = {place: [_on(x, device) for x in self.leaves] for place, device in mine.items()}
        return {place: jax.tree.unflatten(self.form, leaves) for place, leaves in parts.items()}

    @property
    def one(self) -> KVCache:
        """A cache of this process: what is the same of all of them is read here."""
        return next(iter(self.here.values()))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Layers, rows and KV heads of the whole cache."""
        (rows, heads), (layers, b, h) = sizes(self.mesh), self.one.start.shape
        return layers, rows * b, heads * h

    @property
    def slots(self) -> int:
        """Slots of one device's pool, slack included."""
        return self.one.slots

    @property
    def nbytes_by_device(self) -> dict[int, int]:
        """Bytes allocated on each of this process's devices, by its place in the mesh, counted as `KVCache.nbytes` counts."""
        return {place: cache.nbytes for place, cache in self.here.items()}

    @property
    def nbytes(self) -> int:
        """Bytes allocated on all devices of the mesh, each of which has as many."""
        return self.mesh.size * self.one.nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes held in host memory: none."""
        return 0

    def numbers(self, name: str) -> np.ndarray:
        """A field of integers of every device's cache, [rows, heads, ...]: `length`, `capacity`, `budget`, `position`."""
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(self.one)]
        x = whole(next(x for path, x in zip(paths, self.leaves, strict=True) if path[0].name == name), self.mesh)
        return x.reshape(*sizes(self.mesh), x.shape[0] // self.mesh.size, *x.shape[1:])

    @property
    def slots_by_device(self) -> np.ndarray:
        """Slots in use, int [rows, heads]."""
        return self.numbers("length").sum((2, 3, 4))

    @property
    def imbalance(self) -> float:
        """max / mean - 1 of the slots in use that devices hold."""
        return imbalance(self.slots_by_device)

    @property
    def lengths(self) -> np.ndarray:
        """Slots in use, int32 [L, B, H], rows and heads as the batch and the model have them."""
        lengths, heads = self.numbers("length"), self.head_table
        out = np.zeros(self.shape, np.int32)
        for r, rows in enumerate(self.order):
            for n in range(heads.shape[1]):
                for layer, mine in enumerate(heads[r, n]):
                    out[layer][np.ix_(rows, mine)] = lengths[r, n, layer]
        return out

    @property
    def held(self) -> np.ndarray:
        """Tokens held, as `KVCache.held`: slots in use, and those that retrievers of this process's devices hold elsewhere."""
        out, table = self.lengths, self.head_table
        for place, cache in self.here.items():
            r, n = divmod(place, sizes(self.mesh)[1])
            for layer, elsewhere in enumerate(cache.held - cache.lengths):
                out[layer][np.ix_(self.order[r], table[r, n, layer])] += elsewhere
        return out

    @property
    def head_table(self) -> np.ndarray:
        """Which KV heads each device holds, int32 [rows, heads, L, h]."""
        table = whole(self.heads, self.mesh)
        return table.reshape(*sizes(self.mesh), -1, table.shape[1])

    def kept(self, layer: int) -> list[list[np.ndarray]]:
        """Original positions of the slots, by row and KV head, ascending. Raises ValueError where other processes hold some."""
        if len(self.here) < self.mesh.size:
            raise ValueError(f"this process holds {len(self.here)} of {self.mesh.size} parts of the cache: read `here`")
        (_, rows, heads), table = self.shape, self.head_table
        out = [[np.zeros(0)] * heads for _ in range(rows)]
        for place, cache in self.here.items():
            r, n = divmod(place, sizes(self.mesh)[1])
            for row, of_row in zip(self.order[r], cache.kept(layer), strict=True):
                for head, held in zip(table[r, n, layer], of_row, strict=True):
                    out[row][head] = held
        return out

    def in_order(self, x: np.ndarray) -> np.ndarray:
        """Rows [groups · b, ...] as the groups hold them, in the order of the batch."""
        return x[np.argsort(np.concatenate(self.order))]

    def by_group(self, x: np.ndarray) -> np.ndarray:
        """Rows [B, ...] in the order of the batch, as the groups hold them."""
        return x[np.concatenate(self.order)]

    def with_leaves(self, leaves: Sequence[Array]) -> "ShardedCache":
        """The same sharding of other numbers."""
        return replace(self, leaves=tuple(leaves))


def check_unsharded(cache: object) -> None:
    """Raise TypeError for what is no `KVCache`."""
    if isinstance(cache, ShardedCache):
        raise TypeError(
            "expected a KVCache; got a ShardedCache, which decode and extend alone take: save and stack caches before kvjax.shard, "
            "and decode where you would stream (docs/sharding.md)"
        )
    if not isinstance(cache, KVCache):
        raise TypeError(f"expected a KVCache from kvjax.compress, extend or decode; got {type(cache).__name__}")


def spread(parts: dict[int, object], mesh: Mesh) -> Array:
    """One array of equal parts along its first axis, each brought to the device at its place in the mesh."""
    devices = _places(mesh)
    held = [jax.device_put(x, devices[place]) for place, x in parts.items()]
    shape = (mesh.size * held[0].shape[0], *held[0].shape[1:])
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, EACH), held)


def _places(mesh: Mesh) -> dict[int, jax.Device]:
    """This process's devices, by their place in the mesh."""
    return {i: device for i, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()}


def _on(x: Array, device: jax.Device) -> Array:
    return next(part.data for part in x.addressable_shards if part.device == device)
