"""The KV cache: one packed pool for all layers, rows and heads, each owning a region of its own length."""

import math
from dataclasses import fields

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Int32, PyTree, UInt32

from kvjax.cache.retriever_state import RetrieverState
from kvjax.encode.positions import Absolute, PositionPolicy
from kvjax.evidence import Evidence
from kvjax.placement import OnDevice
from kvjax.placement.store import is_store, on_host, store_nbytes
from kvjax.short_repr import attempt, counted, megabytes, one_line, span
from kvjax.slot_positions import in_order, numbered
from kvjax.types import ALIGN, Layer, Logits, Regions, SlotPositions

#: Fields with a number, or numbers, for each row of the batch alone; `nbytes` does not count them.
BY_ROW = ("position", "steps", "logits", "made_by")


@struct.dataclass
class SlotState:
    """What has a slot axis beside keys, values and positions; all of it moves with its slot, and a new token gets zeros.

    Attributes:
        score: the scorer's state, leaves [slots, ...], if slots are evicted while decoding.   merge: the merger's.
        bias: float32 [slots, or as rows of them], added to a slot's attention scores, if a stage keeps one.
    """

    score: PyTree = ()
    merge: PyTree = ()
    bias: Float32[Array, "..."] | None = None


@struct.dataclass
class KVCache:
    """A frozen pytree; every operation returns a new one.

    Invariants: region (l, b, h) owns slots start .. start + capacity - 1 of the pool, of which the first `length` are in use;
    start is a multiple of 8; regions are disjoint; at least 256 slack slots end the pool. `pos[slot]` is the original position of
    the token in that slot, or nothing where that is the slot's place in its region. After `compress` a region is in position order;
    after an eviction while decoding it is in no order.
    Everything with a slot axis moves together.

    Attributes:
        k: rotated keys as their codec's rows (`kvjax.codec`): an array [slots, d], or a pytree of arrays.
        v: values as their codec's rows, on the device, or in host memory (`kvjax.placement`).
        pos: [slots], uint16 where the model's context allows, else int32; [slots, 0] if nothing was or will be evicted.
        state: what stages keep by slot, and the bias of slots.
        start, length, capacity: int32 [L, B, H].
        budget: int32 [L, B, H], what an eviction while decoding cuts back to.
        position: int32 [B], true position of each row's next token.
        steps: int32 [B], tokens since the prompt.
        logits: float32 [B, V] of each row's last token (not part of `nbytes`).
        made_by: uint32 [B], mark of the weights each row was made with (`kvjax.weights_mark`), 0 if that is not known.
        evidence: what each layer's scorer has seen, if slots are evicted while decoding.
        memory: the merger's numbers of each layer and row, float32 [L, B, ...] each.
        retrieval: the retriever's state.
        passed: within a step what a retriever's layers hand on to later ones; () between steps.
        tails: exact keys and exact values beside coded ones (`kvjax.encode.tail.Tail`), () where there are none.
        fitted: what the codecs of keys and of values were fitted to on each prompt, leaves [L, B, ...].
        placement: where `v` lives, the seam it is read and written through.
        positions: where keys and queries stand, hence which keys are stored.
        codecs: what codes keys and values, in words (`Stored.words`): arrays of one shape may be codes of another kind.
        parts: caches that hold the slots where one storage does not hold all of them (`kvjax.encode.parted`): of some layers
            each, or of some slots of every layer. This cache has no slots of its own then; `length` and `capacity` are those of
            its parts together, `start` says nothing.
        first: of a part, which layer of the cache its first one is.
    """

    k: PyTree
    v: PyTree
    pos: SlotPositions
    state: SlotState
    start: Regions
    length: Regions
    capacity: Regions
    budget: Regions
    position: Int32[Array, " b"]
    steps: Int32[Array, " b"]
    logits: Logits
    made_by: UInt32[Array, " b"]
    evidence: tuple[Evidence, ...] = ()
    memory: PyTree = ()
    retrieval: PyTree = ()
    passed: PyTree = ()
    tails: tuple[PyTree, PyTree] = ((), ())
    fitted: tuple[PyTree, PyTree] = ((), ())
    placement: OnDevice = struct.field(pytree_node=False, default=OnDevice())
    positions: PositionPolicy = struct.field(pytree_node=False, default=Absolute())
    codecs: str = struct.field(pytree_node=False, default="")
    parts: tuple["KVCache", ...] = ()
    first: int = struct.field(pytree_node=False, default=0)

    def __repr__(self) -> str:
        """Its sizes in one line: heads, slots in use, bytes allocated, positions of the next tokens."""
        return one_line(
            "KVCache",
            attempt(self._heads),
            attempt(lambda: counted(int(self.lengths.sum()), "slot")),
            attempt(lambda: megabytes(self.nbytes)),
            attempt(lambda: f"{megabytes(self.host_nbytes)} on the host" if self.host_nbytes else ""),
            attempt(lambda: f"position {span(np.asarray(self.position).tolist())}"),
        )

    def _heads(self) -> str:
        layers, rows, heads = self.start.shape
        return f"{counted(layers, 'layer')} x {counted(rows, 'row')} x {counted(heads, 'head')}"

    @property
    def slots(self) -> int:
        """Slots of the pool, slack included."""
        return self.pos.shape[0]

    @property
    def align(self) -> int:
        """What regions begin at multiples of: whole pages, where slots are coded together."""
        coded = jax.tree.leaves((self.k, self.v) if self.placement.on_device else self.k)
        return math.lcm(ALIGN, *(self.slots // x.shape[0] for x in coded))

    @property
    def bias(self) -> Float32[Array, " s"] | None:
        """What is added to each slot's attention scores; None where no stage keeps one."""
        return self.state.bias

    def fitted_of(self, layer: Layer) -> tuple[PyTree, PyTree]:
        """One layer's part of `fitted`, leaves [B, ...]."""
        return jax.tree.map(lambda x: x[layer], self.fitted)

    @property
    def pools(self) -> dict[str, PyTree]:
        """What has an axis of slots, or of pages of them, and lives on the device."""
        here = {"k": self.k, "pos": self.pos, "state": self.state}
        return here | {"v": self.v} if self.placement.on_device else here

    @property
    def lengths(self) -> np.ndarray:
        """Slots in use, int32 [L, B, H]."""
        return np.asarray(self.length)

    @property
    def held(self) -> np.ndarray:
        """Tokens held, int32 [L, B, H]: slots in use, and those that the retriever holds elsewhere."""
        elsewhere = self.retrieval.elsewhere if isinstance(self.retrieval, RetrieverState) else 0
        return self.lengths + np.asarray(elsewhere)

    def _bytes(self, host: bool) -> int:
        others = (*BY_ROW, "placement", "positions", "codecs", "first")
        kept = [getattr(self, f.name) for f in fields(self) if f.name not in others]
        return sum(store_nbytes(x) for x in jax.tree.leaves(kept, is_leaf=is_store) if on_host(x) == host)

    @property
    def nbytes(self) -> int:
        """Bytes allocated on the device for keys, values, positions, statistics and bookkeeping."""
        return self._bytes(host=False)

    @property
    def host_nbytes(self) -> int:
        """Bytes held in host memory."""
        return self._bytes(host=True)

    @property
    def slot_nbytes(self) -> int:
        """Device bytes of one slot: its key, value if it lives there, position and state; of parts, the mean rounded up."""
        if self.parts:
            return -(-self.used_nbytes // max(1, int(self.lengths.sum())))
        held = jax.tree.leaves((self.k, self.v, self.pos, self.state), is_leaf=is_store)
        return sum(store_nbytes(x) // self.slots for x in held if not on_host(x))

    @property
    def used_nbytes(self) -> int:
        """Bytes of the slots in use: what an allocator without rounding or room would need."""
        return sum(part.used_nbytes for part in self.parts) if self.parts else int(self.lengths.sum()) * self.slot_nbytes

    @property
    def room_nbytes(self) -> int:
        """Bytes of the slots reserved for tokens to come."""
        if self.parts:
            return sum(part.room_nbytes for part in self.parts)
        return int((np.asarray(self.capacity) - self.lengths).sum()) * self.slot_nbytes

    def numbered(self) -> "KVCache":
        """The same cache with a position stored for every slot, as one that slots may leave."""
        parts = tuple(part.numbered() for part in self.parts)
        pos = self.pos if self.parts else numbered(self.pos, self.start, self.capacity)
        return self.replace(pos=pos, parts=parts)

    def split(self) -> tuple["KVCache", PyTree]:
        """The cache without what decoding only reads, and that: caches share it, and no program is given it to overwrite."""
        if not isinstance(self.retrieval, RetrieverState):
            return self, ()
        state, read = self.retrieval.split()
        return self.replace(retrieval=state), read

    def joined(self, read: PyTree) -> "KVCache":
        """The cache with what `split` took out."""
        return self if read == () else self.replace(retrieval=self.retrieval.joined(read))

    def adopted(self, old: "KVCache") -> "KVCache":
        """This cache as a program gave it back, with what outlives programs taken over from `old`, the one it was given."""
        parts = tuple(part.adopted(before) for part, before in zip(self.parts, old.parts, strict=True))
        return self.replace(v=self.placement.adopt(self.v, old.v), parts=parts)

    def parts_of(self, layer: int) -> list["KVCache"]:
        """The parts that hold slots of a layer."""
        return [part for part in self.parts if 0 <= layer - part.first < part.start.shape[0]]

    def kept(self, layer: int) -> list[list[np.ndarray]]:
        """Original positions of the slots in the pool, by row and KV head, ascending."""
        if not -self.start.shape[0] <= layer < self.start.shape[0]:
            raise IndexError(f"the cache has layers 0 to {self.start.shape[0] - 1}; got {layer}")
        layer %= self.start.shape[0]
        if self.parts:
            of_parts = [part.kept(layer - part.first) for part in self.parts_of(layer)]
            return [[np.sort(np.concatenate(held)) for held in zip(*row, strict=True)] for row in zip(*of_parts, strict=True)]
        start, length = np.asarray(self.start[layer]), np.asarray(self.length[layer])
        if in_order(self.pos):
            return [[np.arange(n, dtype=self.pos.dtype) for n in row] for row in length]
        pos = np.asarray(self.pos)
        rows = zip(start, length, strict=True)
        return [[np.sort(pos[s : s + n]) for s, n in zip(*row, strict=True)] for row in rows]
