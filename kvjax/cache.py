"""The KV cache: one packed pool for all layers, rows and heads, each owning a region of its own length."""

from dataclasses import fields
from typing import Any

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Int32, Shaped

from kvjax.encode.store import is_store, on_host, store_nbytes
from kvjax.encode.values import OnDevice
from kvjax.types import Logits, Regions, SlotPositions


@struct.dataclass
class KVCache:
    """A frozen pytree; every operation returns a new one.

    Invariants: region (l, b, h) owns slots start .. start + capacity - 1 of the pool, of which the first `length` are in use;
    start is a multiple of 8; regions are disjoint; at least 256 slack slots end the pool. `pos[slot]` is the original position of
    the token in that slot. After `compress` a region is in position order; after an eviction while decoding it is in no order.
    Everything with a slot axis moves together.

    Attributes:
        k: [slots, d] rotated keys, or the rows the encoder makes of them.
        v: the store of values [slots, d], on the device or in host memory (`kvjax.encode.values`).
        pos: [slots], uint16 where the model's context allows, else int32.
        stats: slot-aligned statistics, float32 [slots] each: the scorer's, if slots are evicted while decoding, and the merger's.
        start, length, capacity: int32 [L, B, H].
        budget: int32 [L, B, H], what an eviction while decoding cuts back to.
        position: int32 [B], true position of each row's next token.
        steps: int32 [B], tokens since the prompt.
        logits: float32 [B, V] of each row's last token (not part of `nbytes`).
        evidence: what each layer's scorer has seen, if slots are evicted while decoding.
        memory: the merger's numbers, float32 [L, B] each; NaN before a layer's first eviction.
        retrieval: the retriever's state.
        values: the seam `v` is read and written through.
    """

    k: Shaped[Array, "s r"]
    v: Any
    pos: SlotPositions
    stats: dict[str, Float32[Array, " s"]]
    start: Regions
    length: Regions
    capacity: Regions
    budget: Regions
    position: Int32[Array, " b"]
    steps: Int32[Array, " b"]
    logits: Logits
    evidence: tuple[Any, ...] = ()
    memory: dict[str, Any] = struct.field(default_factory=dict)
    retrieval: Any = ()
    values: Any = struct.field(pytree_node=False, default=OnDevice())

    @property
    def slots(self) -> int:
        """Slots of the pool, slack included."""
        return self.pos.shape[0]

    @property
    def bias(self) -> Float32[Array, " s"] | None:
        """What is added to each slot's attention scores, if a merger keeps it."""
        return self.stats.get("bias")

    @property
    def lengths(self) -> np.ndarray:
        """Slots in use, int32 [L, B, H]."""
        return np.asarray(self.length)

    def _bytes(self, host: bool) -> int:
        kept = [getattr(self, f.name) for f in fields(self) if f.name not in ("logits", "position", "steps", "values")]
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
        """Device bytes of one slot: its key, its value if it lives there, its position and its statistics."""
        held = jax.tree.leaves((self.k, self.v, self.pos, self.stats), is_leaf=is_store)
        return sum(store_nbytes(x) // self.slots for x in held if not on_host(x))

    @property
    def used_nbytes(self) -> int:
        """Bytes of the slots in use: what an allocator without rounding or room would need."""
        return int(self.lengths.sum()) * self.slot_nbytes

    @property
    def room_nbytes(self) -> int:
        """Bytes of the slots reserved for tokens to come."""
        return int((np.asarray(self.capacity) - self.lengths).sum()) * self.slot_nbytes

    def split(self) -> tuple["KVCache", Any]:
        """The cache without what decoding only reads, and that: caches share it, and no program is given it to overwrite."""
        if not hasattr(self.retrieval, "split"):
            return self, ()
        state, read = self.retrieval.split()
        return self.replace(retrieval=state), read

    def joined(self, read: Any) -> "KVCache":
        """The cache with what `split` took out."""
        return self if read == () else self.replace(retrieval=self.retrieval.joined(read))

    def adopted(self, old: "KVCache") -> "KVCache":
        """This cache as a program gave it back, with what outlives programs taken over from `old`, the one it was given."""
        return self.replace(v=self.values.adopt(self.v, old.v))

    def kept(self, layer: int) -> list[list[np.ndarray]]:
        """Original positions held, by row and KV head, ascending."""
        if not -self.start.shape[0] <= layer < self.start.shape[0]:
            raise IndexError(f"the cache has layers 0 to {self.start.shape[0] - 1}; got {layer}")
        pos, start, length = np.asarray(self.pos), np.asarray(self.start[layer]), np.asarray(self.length[layer])
        region = lambda s, n: np.sort(pos[s : s + n])  # noqa: E731
        return [[region(s, n) for s, n in zip(*row, strict=True)] for row in zip(start, length, strict=True)]
