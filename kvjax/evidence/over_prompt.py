"""Reductions of what queries would attend to were the prompt all there is."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.evidence.reduce import Reduction, Rows, RowsAt, Sum
from kvjax.types import Layer


@struct.dataclass
class OverPrompt(Reduction):
    """Another reduction of the rows p_tj / Σ_i p_ti, sum and keys those of the prompt; 0 for keys behind it.

    The softmax of a row over the prompt's keys alone, whatever the step's own tokens take of it.
    """

    reduction: Reduction = Sum()

    @property
    def key(self) -> str:
        return f"over_prompt_{self.reduction.key}"

    def at(self, layer: Layer) -> Reduction:
        return self.replace(reduction=self.reduction.at(layer))

    def empty(self, shape: tuple[int, int, int, int]) -> PyTree:
        return self.reduction.empty(shape)

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PyTree:
        inside = (where.keys < where.prompt[:, None, None])[:, :, None, None]
        p = jnp.where(inside, p, 0.0)
        total = p.sum(-1, keepdims=True)
        p = p / jnp.where(total > 0, total, 1.0)
        return self.reduction.of_rows_at(p, positions, visible & inside, where)

    def join(self, before: PyTree, after: PyTree) -> PyTree:
        return self.reduction.join(before, after)
