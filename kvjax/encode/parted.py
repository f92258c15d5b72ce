"""Storages whose slots are held by parts of the cache, each part with a storage of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.encode.positions import PositionPolicy
from kvjax.encode.stored import Stored
from kvjax.encoder import Encoder
from kvjax.protocols import Cache
from kvjax.types import Queries


@dataclass(frozen=True)
class Share:
    """What of prompts goes into one part: their layers, what was decided there, how it is stored, and whether it is scored on."""

    pre: object
    decided: list[PyTree]
    store: Stored
    scored: bool = False


class Parted(Encoder):
    """What storages in parts share: how many parts there are, and which of them take new tokens.

    Attributes:
        stores: the storages, in an order of their own; all with the same placement and positions.
    """

    parted: bool = True
    dense: bool = False
    movable: bool = False
    stores: tuple[Stored, ...]

    @property
    def placement(self) -> PyTree:
        return self.stores[0].placement

    @property
    def positions(self) -> PositionPolicy:
        return self.stores[0].positions

    @property
    def stepwise(self) -> bool:
        return any(store.stepwise for store in self.stores)

    @property
    def padded(self) -> bool:
        return any(store.padded for store in self.stores)

    def of_parts(self, cache: Cache) -> list[Stored]:
        """The storage of each part of a cache."""
        raise NotImplementedError(f"{type(self).__name__} must define of_parts(cache)")

    def raw(self, cache: Cache, d: int) -> PyTree:
        return [store.raw(part, d) for store, part in zip(self.of_parts(cache), cache.parts, strict=True)]

    def check_stores(self) -> None:
        """Raise ValueError where storages differ in what they must share."""
        if len({(store.placement, store.positions) for store in self.stores}) > 1:
            raise ValueError(f"parts of a cache share their placement and their positions; got {self.stores!r}")
        if not self.placement.on_device:
            raise ValueError(f"parts of a cache live on the device; got placement={self.placement!r}")

    def divided(self, pre: object, decided: Sequence[PyTree]) -> list[Share]:
        """What of prompts goes into each part."""
        raise NotImplementedError(f"{type(self).__name__} must define divided(pre, decided)")

    def takes(self, part: int) -> bool:
        """Whether every new token gets a slot in a part."""
        raise NotImplementedError(f"{type(self).__name__} must define takes(part)")


@struct.dataclass
class PartOfLayer(Encoder):
    """One layer's storage, where one part holds the layer: that part's, with its own count of layers."""

    parted: bool = struct.field(pytree_node=False, default=True)
    store: Stored = Stored()
    part: int = struct.field(pytree_node=False, default=0)
    layer: int = struct.field(pytree_node=False, default=0)

    @property
    def positions(self) -> PositionPolicy:
        return self.store.positions

    def _within(self, context: AttendContext) -> AttendContext:
        return context.replace(layer=self.layer, encode=self.store)

    def append(self, cache: Cache, inputs: AttentionInputs, context: AttendContext, count: Int32[Array, " b"]) -> PyTree:
        new = self.store.append(cache.parts[self.part], inputs, self._within(context), count)
        return with_part(cache, self.part, new)

    def scores(self, q: Queries, cache: Cache, context: AttendContext) -> Float32[Array, "b h g t n"]:
        return self.store.scores(q, cache.parts[self.part], self._within(context))

    def attention(self, q: Queries, cache: Cache, context: AttendContext) -> tuple[Queries, Float32[Array, "b h g t"]]:
        return self.store.attention(q, cache.parts[self.part], self._within(context))

    def weighted_sum(
        self, cache: Cache, context: AttendContext, weights: Float32[Array, "b h g t n"], d: int
    ) -> Float32[Array, "b h g t d"]:
        return self.store.weighted_sum(cache.parts[self.part], self._within(context), weights, d)


def with_part(cache: Cache, index: int, part: object) -> PyTree:
    """The cache with one of its parts changed."""
    return cache.replace(parts=(*cache.parts[:index], part, *cache.parts[index + 1 :]))


def cut_layers(pre: object, decided: Sequence[PyTree], first: int, stop: int) -> tuple[PyTree, list[PyTree]]:
    """Prompts and what was decided, of some consecutive layers alone, counted from the first that is there."""
    rows = tuple(row.replace(k=row.k[first:stop], v=row.v[first:stop], evidence=row.evidence[first:stop]) for row in pre.rows)
    names = "scores", "keep", "count", "budget", "state"
    cut = [d.replace(**{name: getattr(d, name)[first:stop] for name in names}) for d in decided]
    return pre.replace(rows=rows, first=pre.first + first), cut


def capacities(parts: Sequence[PyTree], capacity: Int32[np.ndarray, "l b h"]) -> list[Int32[np.ndarray, "m b h"]]:
    """Capacities by layer, cut to the layers of each part."""
    return [capacity[part.first : part.first + part.start.shape[0]] for part in parts]
