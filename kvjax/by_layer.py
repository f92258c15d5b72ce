"""A stage per kind of layer: some layers named, one stage for the rest.

Layers are told apart when a program is built. Storages by layer make a part of the cache of every run of layers of one kind. An
eviction while decoding loops over layers as data, so it takes no such stage: `Policy.check` refuses it before anything is traced. A
policy may score and cut its prompt layer by layer and name one scorer while decoding, `Every(k, score=...)`.
"""

from collections.abc import Iterable, Mapping

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.allocate.by_layer import AllocateByLayer
from kvjax.encode.by_layer import EncodeByLayer
from kvjax.encode.stored import Stored
from kvjax.evidence import Need
from kvjax.layer_kinds import LayerKinds
from kvjax.protocols import Decoder
from kvjax.stage import Allocator, Merger, Scorer, Selector
from kvjax.types import Layer, Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class ScoreByLayer(LayerKinds, Scorer):
    """Each layer's slots are scored by the scorer of its kind."""


@struct.dataclass
class SelectByLayer(LayerKinds, Selector):
    """Each kind of layer has its selector, which ranks the layers of that kind alone."""

    @property
    def exact(self) -> bool:
        return all(kind.exact for kind in self.stages)

    def protected_by_layer(self, view: LayerView, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        return jnp.stack([self.at(layer).protected(view, budget[layer]) for layer in range(budget.shape[0])])

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        if ranking.layers > budget.shape[0]:
            raise ValueError("a selector by layer must be given all layers at once: compress the prompt after its prefill")
        parts = self.parts(budget.shape[0])
        kept = [kind(ranking.part(at), budget[at]) for kind, at in parts]
        return jnp.concatenate(kept)[np.argsort(np.concatenate([at for _, at in parts]))]


@struct.dataclass
class MergeByLayer(LayerKinds, Merger):
    """Each layer's lost slots are merged by the merger of its kind; every slot holds the state of all kinds.

    Raises (from `check`): ValueError for a merger whose memory other stages read, in all layers, and for mergers that read the
    states of different scorers.
    """

    @property
    def state_of(self) -> type[Scorer] | None:
        return next((kind.state_of for kind in self.stages if kind.state_of is not None), None)

    @property
    def rewrites(self) -> bool:
        return any(kind.rewrites for kind in self.stages)

    @property
    def biased(self) -> bool:
        return any(kind.biased for kind in self.stages)

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        keeper = next((kind for kind in self.stages if kind.keeps), None)
        if keeper is not None:
            raise ValueError(
                f"{type(keeper).__name__} keeps {', '.join(sorted(keeper.keeps))} of every layer, for stages that read them all: "
                "use it for all layers, merge=..., or another merger in its place"
            )
        read = sorted({kind.state_of.__name__ for kind in self.stages if kind.state_of is not None})
        if len(read) > 1:
            raise ValueError(f"mergers of a policy read the state of one scorer; these read {' and '.join(read)}: use one of them")

    def at(self, layer: Layer) -> "MergerOfKind":
        return MergerOfKind(kinds=tuple(kind.at(layer) for kind in self.stages), index=self.kind_of(layer))

    def init(self, shape: tuple[int, int, int]) -> PyTree:
        return tuple(kind.init(shape) for kind in self.stages)

    def begin(self, rows: int) -> PyTree:
        return tuple(kind.begin(rows) for kind in self.stages)


@struct.dataclass
class MergerOfKind(Merger):
    """One kind's merger among the state of all kinds."""

    kinds: tuple[Merger, ...]
    index: int = struct.field(pytree_node=False)

    @property
    def needs(self) -> frozenset[Need]:
        return self.kinds[self.index].needs

    @property
    def state_of(self) -> type[Scorer] | None:
        return self.kinds[self.index].state_of

    @property
    def rewrites(self) -> bool:
        return any(kind.rewrites for kind in self.kinds)

    @property
    def biased(self) -> bool:
        return any(kind.biased for kind in self.kinds)

    def init(self, shape: tuple[int, int, int]) -> PyTree:
        return tuple(kind.init(shape) for kind in self.kinds)

    def begin(self, rows: int) -> PyTree:
        return tuple(kind.begin(rows) for kind in self.kinds)

    def sized(self, widest: int) -> "MergerOfKind":
        return self.replace(kinds=_with(self.kinds, self.index, self.kinds[self.index].sized(widest)))

    def __call__(self, view: LayerView, keep: Mask, scores: Float32[Array, "b h n"], memory: PyTree) -> tuple[LayerView, PyTree]:
        merged, left = self.kinds[self.index](view.replace(state=view.state[self.index]), keep, scores, memory[self.index])
        state = _with(view.state, self.index, merged.state)
        return merged.replace(state=state), _with(memory, self.index, left)


def _with(parts: tuple, index: int, part: object) -> tuple:
    """The parts with one of them changed."""
    return (*parts[:index], part, *parts[index + 1 :])


_KINDS: dict[type, type] = {
    Scorer: ScoreByLayer,
    Allocator: AllocateByLayer,
    Selector: SelectByLayer,
    Merger: MergeByLayer,
    Stored: EncodeByLayer,
}


def _named(key: object) -> tuple[int, ...]:
    """A layer, or layers, as a user names them."""
    group = tuple(key) if isinstance(key, Iterable) else (key,)
    if not all(isinstance(layer, int | np.integer) and not isinstance(layer, bool) for layer in group):
        raise TypeError(f"expected a layer, an integer from 0 on, or a tuple of them as a key of by_layer; got {key!r}")
    return tuple(map(int, group))


def by_layer(stage: object, others: Mapping[int | tuple[int, ...], PyTree]) -> PyTree:
    """One stage for some layers and another for the rest: a scorer, an allocator, a selector, a merger or a storage.

    Args:
        stage: for every layer not named.   others: the stage of each layer, or of each tuple of layers, counted from 0.

    Raises:
        TypeError: stages of another slot, or of different ones; a layer that is no integer.
        ValueError: a layer named twice, or a negative one.
    """
    slot = next((kind for kind in _KINDS if isinstance(stage, kind)), None)
    if slot is None or not all(isinstance(other, slot) for other in others.values()):
        kinds = "scorers, allocators, selectors, mergers or storages"
        raise TypeError(f"by_layer takes {kinds}, all of one slot; got {stage!r} and {others!r}")
    layers = tuple(map(_named, others))
    named = [layer for group in layers for layer in group]
    if len(set(named)) < len(named) or any(layer < 0 for layer in named):
        raise ValueError(f"every layer is named once, counted from 0; got {layers}")
    return _KINDS[slot](rest=stage, kinds=tuple(others.values()), layers=layers)
