"""Slots of the prompt that a retriever holds outside the pool, most often in host memory."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, Int64, PyTree, Shaped

from kvjax.cache.counter import Counter
from kvjax.cache.retriever_state import RetrieverState
from kvjax.encoder import Encoder
from kvjax.kernels.compact import first
from kvjax.kernels.gather_attention import gather_attention
from kvjax.placement import OnDevice
from kvjax.placement.by_callback import ByCallback
from kvjax.types import Queries, size_class


@struct.dataclass
class Elsewhere:
    """Rows of slots that did not enter the pool, region behind region, each in position order; decoding only reads them.

    Attributes:
        stores: one of rows [slots, width] for each kind of row (keys, values, parts of keys).
        offset: first row of each region.   count: its rows.
        home: where the stores are.   slot_nbytes: bytes of one slot in all of them.
    """

    stores: tuple[PyTree, ...]
    offset: Int32[Array, "l b h"]
    count: Int32[Array, "l b h"]
    home: OnDevice = struct.field(pytree_node=False)
    slot_nbytes: int = struct.field(pytree_node=False)

    def begin(self, layer: int, slots: Int32[Array, "b h m"]) -> Int32[Array, ""]:
        """Have rows of every kind read that `take` will be asked for: 0, there as soon as the readings have begun."""
        at = self.offset[layer][..., None] + slots
        return sum((self.home.begin(store, at) for store in self.stores), jnp.int32(0))

    def take(self, kind: int, layer: int, slots: Int32[Array, "b h m"], after: PyTree = ()) -> Float[Array, "b h m c"]:
        """Rows of one kind, on the device, waited for when `after` is there; `slots` count from each region's first."""
        return self.home.take(self.stores[kind], self.offset[layer][..., None] + slots, after)

    @staticmethod
    def stack(several: list) -> "Elsewhere":
        """Several rows as one batch."""
        sizes = [x.stores[0].shape[0] for x in several]
        shift = np.cumsum([0, *sizes[:-1]])
        first, cat = several[0], jnp.concatenate if several[0].home.on_device else several[0].home.concatenate
        return first.replace(
            stores=tuple(cat(list(kind)) for kind in zip(*(x.stores for x in several), strict=True)),
            offset=jnp.concatenate([x.offset + int(s) for x, s in zip(several, shift, strict=True)], 1),
            count=jnp.concatenate([x.count for x in several], 1),
        )


def once_begun(begun: Int32[Array, ""], x: PyTree) -> PyTree:
    """x, to the bit, for work that is to come after `begun`: a number of `begin`, never negative, which no compiler knows."""
    return jax.tree.map(lambda leaf: jnp.where(begun < 0, jnp.zeros_like(leaf), leaf), x)


#: What is to be stored of one row and layer: one array [1, h, n, width] for each kind.
Parts = tuple[Float[Array, "1 h _ _"], ...]


#: Which slots of one row are elsewhere, as `compress` has it, or as NumPy's where a cache is planned as shapes.
Away = Bool[Array, "l 1 h _"] | Bool[np.ndarray, "l 1 h _"]


def saved(home: OnDevice, away: Sequence[Away], parts: Sequence[Sequence[Parts]]) -> Elsewhere:
    """The slots in `away`, a mask for each prompt, with parts[row][layer]; a layer without a slot is not touched."""
    count = np.concatenate([np.asarray(mask.sum(-1)) for mask in away], 1)
    by_row = np.moveaxis(count, 1, 0).reshape(-1)
    offset = np.moveaxis((np.cumsum(by_row) - by_row).reshape(count.shape[1], count.shape[0], -1), 0, 1)
    kinds = parts[0][0]
    stores = [home.empty(size_class(int(count.sum())), part.shape[-1], part.dtype) for part in kinds]
    for r, (mask, layers) in enumerate(zip(away, parts, strict=True)):
        for layer, of_layer in enumerate(layers):
            if count[layer, r].any():
                where = mask[layer], jnp.asarray(offset[layer, r][None], jnp.int32)
                stores = [home.adopt(_put(home, s, x, *where), s) for s, x in zip(stores, of_layer, strict=True)]
    return Elsewhere(
        stores=tuple(stores), offset=jnp.asarray(offset, jnp.int32), count=jnp.asarray(count, jnp.int32), home=home,
        slot_nbytes=sum(part.shape[-1] * part.dtype.itemsize for part in kinds),
    )  # fmt: skip


@partial(jax.jit, static_argnames=("home",), donate_argnames=("store",))
def _put(home, store, rows, mask, start):
    """Rows [1 h n c] of the slots in the mask, packed from `start` [1 h] on."""
    count = mask.sum(-1, dtype=jnp.int32)
    return home.pick(store, rows, first(mask), start, count) if mask.shape[-1] else store


def rows_together(several: Sequence[Shaped[Array, "_ h _ *c"]]) -> Shaped[Array, "b h n *c"]:
    """One array of several rows, tokens padded with zeros to the longest prompt."""
    n = max(x.shape[2] for x in several)
    return jnp.concatenate([jnp.pad(x, ((0, 0), (0, 0), (0, n - x.shape[2])) + ((0, 0),) * (x.ndim - 3)) for x in several])


def check_homes(name: str, home: OnDevice, encode: Encoder) -> None:
    """Raise ValueError for host arrays and ordered callbacks in one program."""
    callbacks = isinstance(home, ByCallback), isinstance(encode.placement, ByCallback)
    if not home.on_device and not encode.placement.on_device and callbacks[0] != callbacks[1]:
        raise ValueError(f"one program cannot hold both host arrays and ordered callbacks: {name} has {home}, values {encode}")


def check_whole(name: str, rows: list, decided: list) -> None:
    """Raise ValueError where a prompt is not held whole."""
    if any((np.asarray(d.count) != int(row.length[0])).any() for row, d in zip(rows, decided, strict=True)):
        raise ValueError(f"{name} chooses among all tokens of a prompt: leave the budget at 1.0, and evict nothing")


def attend_rows(
    q: Queries, k: Float[Array, "b h m d"], v: Float[Array, "b h m d"], count: Int32[Array, "b h"]
) -> tuple[Queries, Float32[Array, "b h g 1"]]:
    """(out, lse) of one query a row over the first `count` of rows that were fetched."""
    b, h, m, d = k.shape
    slots = jnp.arange(b * h * m, dtype=jnp.int32).reshape(b, h, m)
    return gather_attention(q, k.reshape(-1, d), v.reshape(-1, d), slots, count)


@struct.dataclass
class Fetching(RetrieverState):
    """What retrievers keep that fetch slots of the prompt from elsewhere.

    Attributes:
        away: those slots, None where all are in the pool.   fetched: how many each row's tokens asked for, all layers and heads.
        moved: how many came: lists have a fixed size, and their rest comes, too, as do those of a row that has ended.
    """

    away: Elsewhere | None
    fetched: Counter
    moved: Counter

    @property
    def elsewhere(self) -> PyTree:
        return 0 if self.away is None else self.away.count

    @property
    def common(self) -> str:
        return "nothing elsewhere" if self.away is None else f"slots of {self.away.slot_nbytes} bytes in {self.away.home!r}"

    @property
    def raw(self) -> PyTree:
        return () if self.away is None else self.away.stores

    @property
    def fetched_nbytes(self) -> Int64[np.ndarray, " b"]:
        """Bytes of what each row asked for so far, a row of every store a slot: the papers' count."""
        return self._nbytes(self.fetched)

    @property
    def moved_nbytes(self) -> Int64[np.ndarray, " b"]:
        """Bytes that came from elsewhere for each row so far."""
        return self._nbytes(self.moved)

    def _nbytes(self, slots: Counter) -> Int64[np.ndarray, " b"]:
        return slots.total * (0 if self.away is None else self.away.slot_nbytes)

    def took(self, slots: Int32[Array, "b h m"], asked: Int32[Array, " b"], real: Bool[Array, "b t"]) -> "Fetching":
        """With one more fetch of a layer: lists of slots, and how many each row asks for where it has tokens."""
        moved = jnp.full_like(asked, slots.shape[1] * slots.shape[2])
        return self.replace(fetched=self.fetched.plus(jnp.where(real[:, 0], asked, 0)), moved=self.moved.plus(moved))

    def split(self) -> tuple["Fetching", PyTree]:
        return self.replace(away=None), self.away

    def joined(self, read: PyTree) -> "Fetching":
        return self.replace(away=read)
