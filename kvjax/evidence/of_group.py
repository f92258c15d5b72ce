"""Reductions of what the query heads of a group attend to together."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.evidence.reduce import Reduction, Rows, RowsAt, Sum
from kvjax.types import Layer


@struct.dataclass
class OfGroupMean(Reduction):
    """Another reduction of the rows' mean over the query heads of a KV head; its states are [b, h, 1, n]."""

    reduction: Reduction = Sum()

    @property
    def key(self) -> str:
        return f"group_mean_{self.reduction.key}"

    def at(self, layer: Layer) -> Reduction:
        return self.replace(reduction=self.reduction.at(layer))

    def empty(self, shape: tuple[int, int, int, int]) -> PyTree:
        return self.reduction.empty((*shape[:2], 1, shape[3]))

    def of_group(self, p: Rows) -> Float32[Array, "b h 1 t n"]:
        """One row for each group."""
        return p.mean(2, keepdims=True)

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PyTree:
        return self.reduction.of_rows(self.of_group(p), positions, visible.any(2, keepdims=True))

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PyTree:
        return self.reduction.of_rows_at(self.of_group(p), positions, visible.any(2, keepdims=True), where)

    def join(self, before: PyTree, after: PyTree) -> PyTree:
        return self.reduction.join(before, after)


@struct.dataclass
class OfGroupMax(OfGroupMean):
    """The same of the rows' maximum over the query heads: what any of them attends to."""

    @property
    def key(self) -> str:
        return f"group_max_{self.reduction.key}"

    def of_group(self, p: Rows) -> Float32[Array, "b h 1 t n"]:
        return jnp.max(p, 2, keepdims=True)
