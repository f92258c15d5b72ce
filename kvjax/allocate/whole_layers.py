"""Some layers keep everything, whatever another allocator gives them."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32, PyTree

from kvjax.allocate.uniform import Uniform, held
from kvjax.evidence import Evidence, Need
from kvjax.protocols import Decoder
from kvjax.stage import Allocator
from kvjax.types import Layer
from kvjax.view import LayerView, Ranking


@struct.dataclass
class WholeLayers(Allocator):
    """b_l = n for the layers named, allocate's b_l for the others: together more than the total.

    Args:
        layers: which layers keep everything; negative ones count from the last.
        allocate: shares out the total over all layers, the whole ones included.

    The release of D2O keeps layers 0, 1 and L - 1 whole without counting them: of 32 layers at 20% that is 27.5% in truth. The
    slots a cache really holds are in `cache.lengths` and `cache.nbytes`.
    """

    exact: ClassVar[bool] = False
    layers: tuple[int, ...] = struct.field(pytree_node=False, default=(0, 1, -1))
    allocate: Allocator = Uniform()

    @property
    def by_layer(self) -> bool:
        """Which layers are whole is known beforehand."""
        return self.allocate.by_layer

    @property
    def needs(self) -> frozenset[Need]:
        return self.allocate.needs

    def at(self, layer: Layer) -> "WholeLayers":
        return self.replace(allocate=self.allocate.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        wrong = [layer for layer in self.layers if not -model.layers <= layer < model.layers]
        if wrong:
            raise ValueError(f"WholeLayers: the model has layers 0 to {model.layers - 1}; got {wrong}")
        self.allocate.check(model, length, mean_budget)

    def measure(self, view: LayerView, evidence: Evidence) -> PyTree:
        return self.allocate.measure(view, evidence)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        index = ranking.first + jnp.arange(n.shape[0])
        whole = jnp.isin(index, jnp.asarray([layer % ranking.layers for layer in self.layers], jnp.int32))
        return jnp.where(whole[:, None, None], n, self.allocate(ranking, mean_budget))
