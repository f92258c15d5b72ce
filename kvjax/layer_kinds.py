"""Layers sorted into kinds, each with a stage of its own: what the stages by layer share."""

from typing import ClassVar

import numpy as np
from flax import struct
from jaxtyping import PyTree

from kvjax.evidence import Need, union
from kvjax.protocols import Decoder
from kvjax.stage import Stage
from kvjax.types import Layer


@struct.dataclass
class LayerKinds(Stage):
    """A stage for each kind of layer.

    Attributes:
        rest: the stage of layers that are not named.
        kinds: the other stages.   layers: which layers each of them has, counted from 0.
    """

    static_layers: ClassVar[bool] = True
    rest: PyTree
    kinds: tuple[PyTree, ...]
    layers: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)

    @property
    def stages(self) -> tuple[PyTree, ...]:
        """The stages of all kinds, the rest's last."""
        return (*self.kinds, self.rest)

    @property
    def needs(self) -> frozenset[Need]:
        return union(*(stage.needs for stage in self.stages))

    def kind_of(self, layer: int) -> int:
        """The index in `stages` of a layer's stage."""
        return next((i for i, named in enumerate(self.layers) if layer in named), len(self.kinds))

    def at(self, layer: Layer) -> PyTree:
        return self.stages[self.kind_of(layer)].at(layer)

    def parts(self, layers: int) -> list[tuple[PyTree, np.ndarray]]:
        """Of a model of so many layers: each stage with its layers, those without any left out."""
        kinds = np.array([self.kind_of(layer) for layer in range(layers)])
        found = [(stage, np.flatnonzero(kinds == i)) for i, stage in enumerate(self.stages)]
        return [(stage, at) for stage, at in found if len(at)]

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        beyond = [layer for group in self.layers for layer in group if layer >= model.layers]
        if beyond:
            raise ValueError(f"the model has layers 0 to {model.layers - 1}; a stage is named for {beyond}")
        for stage in self.stages:
            stage.check(model, length, mean_budget)
