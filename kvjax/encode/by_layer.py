"""A storage for each kind of layer: consecutive layers of one kind are a part of the cache."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from flax import struct
from jaxtyping import Int32, PyTree

from kvjax.encode.parted import Parted, PartOfLayer, Share, capacities, cut_layers
from kvjax.encode.stored import Stored
from kvjax.layer_kinds import LayerKinds
from kvjax.protocols import Cache, Decoder
from kvjax.stage import Stage


@struct.dataclass
class EncodeByLayer(LayerKinds, Parted):
    """Each layer's slots are stored as those of its kind; a layer takes what its own storage takes, nothing for the others."""

    def __post_init__(self):
        if all(isinstance(store, Stored) for store in self.stages):
            self.check_stores()

    @property
    def stores(self) -> tuple[Stored, ...]:
        return self.stages

    @property
    def page(self) -> int:
        return int(np.lcm.reduce([store.page for store in self.stages]))

    def runs(self, layers: int) -> list[tuple[int, int, int]]:
        """(kind, first, stop) of consecutive layers of one kind."""
        kinds = [(kind, list(run)) for kind, run in groupby(range(layers), self.kind_of)]
        return [(kind, run[0], run[-1] + 1) for kind, run in kinds]

    def at(self, layer: int) -> PartOfLayer:
        kind, first, _ = self.runs(layer + 1)[-1]
        return PartOfLayer(store=self.stages[kind].at(layer), part=len(self.runs(layer + 1)) - 1, layer=layer - first)

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        tables = [codec for store in self.stores if store.stepwise for codec in store.codecs if type(codec).at is not Stage.at]
        if tables:
            raise ValueError(f"{tables[0]!r} has tables by layer: beside storages of other layers it has no exact window")

    def divided(self, pre: object, decided: Sequence[PyTree]) -> list[Share]:
        runs = self.runs(len(pre.layers))
        return [Share(*cut_layers(pre, decided, first, stop), store=self.stages[kind]) for kind, first, stop in runs]

    def takes(self, part: int) -> bool:
        return True

    def room(self, cache: Cache, capacity: Int32[np.ndarray, "l b h"]) -> list[Int32[np.ndarray, "m b h"]]:
        return capacities(cache.parts, capacity)

    def of_parts(self, cache: Cache) -> list[Stored]:
        return [self.stages[kind] for kind, _, _ in self.runs(cache.start.shape[0])]

    def flush(self, cache: Cache) -> PyTree:
        parts = tuple(store.flush(part) for store, part in zip(self.of_parts(cache), cache.parts, strict=True))
        return cache.replace(parts=parts)

    def fits(self, cache: Cache, d: int) -> bool:
        """Whether the cache's parts are of these layers, each stored as these are."""
        runs = self.runs(cache.start.shape[0])
        if [(part.first, part.first + part.start.shape[0]) for part in cache.parts] != [(first, stop) for _, first, stop in runs]:
            return False
        return all(store.fits(part, d) for store, part in zip(self.of_parts(cache), cache.parts, strict=True))
