"""Budgets of some layers by one allocator, what is left shared out to the rest by another."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int32, PyTree

from kvjax.allocate.exact import exact_alloc
from kvjax.allocate.uniform import held
from kvjax.evidence import Evidence
from kvjax.layer_kinds import LayerKinds
from kvjax.protocols import Decoder
from kvjax.stage import Allocator
from kvjax.types import Layer
from kvjax.view import LayerView, Ranking


@struct.dataclass
class Everything(Allocator):
    """b = n: the layers it is named for keep every slot."""

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        del mean_budget
        return held(ranking)


@struct.dataclass
class AllocateByLayer(LayerKinds, Allocator):
    """Named layers first, by their allocator at the mean budget B; the rest shares what is left of L·H·B, to the slot.

    rest's mean = floor((L·H·B - taken) / (R·H)) for its R layers; the remainder goes to its heads in proportion to their budgets.
    An allocator ranks the layers of its kind alone, so one with a table for all layers fits no part of them.

    Raises (from `check`): ValueError if named layers that keep everything leave the others less than a slot a head.
    """

    @property
    def exact(self) -> bool:
        return self.rest.exact

    def at(self, layer: Layer) -> "AllocateByLayer":
        return self.replace(rest=self.rest.at(layer), kinds=tuple(kind.at(layer) for kind in self.kinds))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        named = [len(group) * (length if isinstance(kind, Everything) else mean_budget) for kind, group in self._named()]
        others = model.layers - sum(len(group) for group in self.layers)
        if sum(named) + others > model.layers * mean_budget and mean_budget < length:
            least = -(-(sum(named) + others) // model.layers)
            raise ValueError(
                f"the layers named keep {sum(named)} slots a head together, and a budget of {mean_budget} on average has "
                f"{model.layers * mean_budget}: ask for at least {least}"
            )

    def _named(self) -> list[tuple[Allocator, tuple[int, ...]]]:
        return list(zip(self.kinds, self.layers, strict=True))

    def measure(self, view: LayerView, evidence: Evidence) -> PyTree:
        return tuple(stage.measure(view, evidence) for stage in self.stages)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        layers, b, h = ranking.valid.shape[:3]
        budgets, taken = jnp.zeros((layers, b, h), jnp.int32), jnp.zeros(b, jnp.int32)
        for i, group in enumerate(self.layers):
            given = self.kinds[i](self._part(ranking, i, np.array(group)), mean_budget).astype(jnp.int32)
            budgets, taken = budgets.at[np.array(group)].set(given), taken + given.sum((0, 2))
        rest = np.array([layer for layer in range(layers) if self.kind_of(layer) == len(self.kinds)], int)
        left = layers * h * mean_budget - taken
        return budgets.at[rest].set(self._shared(self._part(ranking, -1, rest), left)) if len(rest) else budgets

    def _part(self, ranking: Ranking, kind: int, layers: np.ndarray) -> Ranking:
        """The ranking of some layers, with what their kind's allocator measured."""
        mine = ranking.replace(measured=ranking.measured[kind] if ranking.measured else ())
        return mine.part(layers)

    def _shared(self, ranking: Ranking, left: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        """`left` slots in all to the heads of the layers ranked."""
        most = held(ranking)
        layers, b, h = most.shape
        given = self.rest(ranking, jnp.maximum(left // (layers * h), 1)).astype(jnp.int32)
        if not self.rest.exact:
            return given

        def flat(x):
            return jnp.moveaxis(x, 1, 0).reshape(b, layers * h)

        low = flat(given)
        whole = exact_alloc(low.astype(jnp.float32), left, low, jnp.maximum(low, flat(most)))
        return jnp.moveaxis(whole.reshape(b, layers, h), 1, 0)
