"""The stage that stores slots."""

from typing import ClassVar

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.protocols import Cache, Placement, Positioning
from kvjax.stage import Stage
from kvjax.types import Keys, Layer, Queries, Values


class Encoder(Stage):
    """How slots are stored: keys and values as rows of pools, values in a store that has a placement (`kvjax.placement`)."""

    #: Where values live (`kvjax.placement`).
    placement: Placement | None = None
    #: Where keys and queries stand (`kvjax.encode.positions`).
    positions: Positioning | None = None

    #: What codes keys and values, for a cache to remember (`KVCache.codecs`).
    words: str = ""
    #: Whether keys and values are numbers on the device that attention kernels read as they are.
    dense: bool = True
    #: Whether known tokens are fed one at a time, so that every step leaves exact what it should.
    stepwise: bool = False
    #: Slots that are coded together: regions begin at a multiple of it.
    page: int = 1
    #: Whether slots are held by parts of the cache, each with a storage of its own (`kvjax.encode.parted`).
    parted: bool = False
    #: Whether slots move between parts while decoding, by the policy's scores; nothing is cut to a budget then.
    moves: bool = False
    #: Whether slots leave the cache while decoding by its own rule, past the merger.
    evicts: bool = False
    #: Whether a slot can be moved or rewritten by itself, as evicting while decoding does.
    movable: bool = True
    #: Whether all heads of a layer must hold as many slots, because the i-th slots of all of them are one code.
    together: bool = False
    #: Whether it needs a position stored for every slot: slots of a head are not all in one region, or take up several tokens.
    numbered: ClassVar[bool] = False
    #: What it reads of the merger's memory (`cache.memory`), by name (`Merger.keeps`).
    reads_memory: ClassVar[frozenset[str]] = frozenset()

    @property
    def padded(self) -> bool:
        """Whether attention needs a static bound on the slots of a region."""
        return not self.dense

    def raw(self, cache: Cache, d: int) -> PyTree:
        """Rows of the cache whose numbers are in the model's dtype, whatever that is, for heads of d channels.

        They take twice the bytes in a model of twice the bits; codes, and all else of a cache, take as many in any.
        """
        del cache, d
        return ()

    def room(self, cache: Cache, capacity: Int32[np.ndarray, "l b h"]) -> PyTree:
        """Capacities to ask for where regions are to hold so many slots: the same, or those of each part."""
        del cache
        return capacity

    def flush(self, cache: Cache) -> PyTree:
        """The cache after the last layer of a step, with what is no longer to be exact coded."""
        return cache

    def empty(self, slots: int, d: int, dtype: DTypeLike) -> tuple[PyTree, PyTree]:
        """Empty pools of keys and values of `slots` slots, for a model of head dimension d whose numbers come in `dtype`."""
        raise NotImplementedError(f"{type(self).__name__} must define empty(slots, d, dtype)")

    def take(self, cache: Cache, layer: Layer, slots: Int32[Array, "b h n"], dtype: DTypeLike) -> tuple[Keys, Values]:
        """Keys and values of any slots of a layer, decoded."""
        raise NotImplementedError(f"{type(self).__name__} must define take(cache, layer, slots, dtype)")

    def append(self, cache: Cache, inputs: AttentionInputs, context: AttendContext, count: Int32[Array, " b"]) -> PyTree:
        """The cache with a layer's new keys and values stored in the slots made for them, the last `count` of each region."""
        raise NotImplementedError(f"{type(self).__name__} must define append(cache, inputs, context, count)")

    def scores(self, q: Queries, cache: Cache, context: AttendContext) -> Float32[Array, "b h g t n"]:
        """q·k / sqrt(d) over every region padded to `context.padded_slots`; -inf where a query sees no slot."""
        raise NotImplementedError(f"{type(self).__name__} must define scores(q, cache, context)")

    def attention(self, q: Queries, cache: Cache, context: AttendContext) -> tuple[Queries, Float32[Array, "b h g t"]]:
        """(out, lse) over all slots held."""
        raise NotImplementedError(f"{type(self).__name__} must define attention(q, cache, context)")

    def weighted_sum(
        self, cache: Cache, context: AttendContext, weights: Float32[Array, "b h g t n"], d: int
    ) -> Float32[Array, "b h g t d"]:
        """Σ_j weights_j v_j over the slots of a layer's regions."""
        raise NotImplementedError(f"{type(self).__name__} must define weighted_sum(cache, context, weights, d)")
