"""What goes is absorbed into a state of constant size, which queries go on reading (LESS)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, PyTree

from kvjax.evidence.gate_values import origin_of
from kvjax.gates.side_maps import check_side_maps, key_features
from kvjax.protocols import Decoder
from kvjax.stage import Merger
from kvjax.types import Layer, Mask, Scores, Table, table
from kvjax.view import LayerView


@struct.dataclass
class Absorbed(Merger):
    """a ← a + Σ ψ(k_i), H ← H + Σ ψ(k_i)ᵀ v_i over the slots i that go; those that stay keep their bits.

    Memory: {"a": [b h r], "H": [b h r d]} of each layer, float32: (r d + r) · 4 bytes a KV head, whatever the text. It is read by
    `kvjax.retrieve.WithAbsorbed`.

    Args:
        weights: as `kvjax.gates.init_side_maps` gives them.   origin: of the weights; two mergers with one origin are equal.

    Raises (from `check`): ValueError for maps of another model, and for a model with sliding windows.
    Source: LESS, arXiv 2402.09398, section 3.
    """

    keeps: ClassVar[frozenset[str]] = frozenset({"a", "H"})
    weights: Table = table()
    origin: str = struct.field(pytree_node=False, default="")

    @classmethod
    def of(cls, weights: PyTree, origin: str = "") -> "Absorbed":
        """With an origin made from the weights where none is given."""
        return cls(weights=weights, origin=origin or origin_of(weights))

    def at(self, layer: Layer) -> "Absorbed":
        return self.replace(weights=jax.tree.map(lambda x: jnp.asarray(x)[layer], self.weights))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        check_side_maps(self.weights, model)

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, dict[str, Array]]:
        del scores
        gone = (view.valid & ~keep)[..., None]
        psi = jnp.where(gone, key_features(jnp.where(gone, view.k, 0), self.weights["k"]), 0.0)
        v = jnp.where(gone, view.v.astype(jnp.float32), 0.0)
        return view, absorbed(memory, psi, v)


def absorbed(
    memory: PyTree, psi: Float32[Array, "b h n r"], v: Float32[Array, "b h n d"]
) -> dict[str, Array]:  # fmt: skip
    """The state with some tokens more; of nothing before where `memory` is ()."""
    new = {"a": psi.sum(2), "H": jnp.einsum("bhnr,bhnd->bhrd", psi, v, precision=lax.Precision.HIGHEST)}
    return jax.tree.map(jnp.add, memory, new) if memory else new
