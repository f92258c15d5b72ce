"""Attention to what is held, joined with what was absorbed of the rest (LESS)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence.gate_values import origin_of
from kvjax.gates.side_maps import check_side_maps, query_features
from kvjax.join import Part, joined
from kvjax.protocols import Cache, Decoder
from kvjax.stage import Retriever
from kvjax.types import Layer, Table, table


def side_part(phi: Float32[Array, "b h g t r"], a: Float32[Array, "b h r"], state: Float32[Array, "b h r d"]) -> Part:
    """(φ H / φ·a, log φ·a): the part of attention that was absorbed; 0 and -inf where that is nothing."""
    mass = jnp.einsum("bhgtr,bhr->bhgt", phi, a, precision=lax.Precision.HIGHEST)
    value = jnp.einsum("bhgtr,bhrd->bhgtd", phi, state, precision=lax.Precision.HIGHEST)
    some = mass > 0
    mass = jnp.where(some, mass, 1.0)
    return jnp.where(some[..., None], value / mass[..., None], 0.0), jnp.where(some, jnp.log(mass), -jnp.inf)


@struct.dataclass
class WithAbsorbed(Retriever):
    """out = (Σ_kept e^{z_j} v_j + φ(q) H) / (Σ_kept e^{z_j} + φ(q)·a). Scorers see the softmax over what is held alone.

    H and a are what `kvjax.merge.Absorbed` keeps. Keys must be stored where the text has them.

    Args:
        weights: as `kvjax.gates.init_side_maps` gives them.   origin: of the weights.

    Raises (from `check`): ValueError for maps of another model, and for a model with sliding windows: what is absorbed has no
    position, so none of it could be left out. Source: LESS, arXiv 2402.09398, section 3. Differs: where nothing was absorbed
    nothing is added (the release adds a mass of 1e-6).
    """

    reads_keys: ClassVar[bool] = True
    reads_memory: ClassVar[frozenset[str]] = frozenset({"a", "H"})
    weights: Table = table()
    origin: str = struct.field(pytree_node=False, default="")

    @classmethod
    def of(cls, weights: PyTree, origin: str = "") -> "WithAbsorbed":
        """With an origin made from the weights where none is given."""
        return cls(weights=weights, origin=origin or origin_of(weights))

    def at(self, layer: Layer) -> "WithAbsorbed":
        return self.replace(weights=jax.tree.map(lambda x: jnp.asarray(x)[layer], self.weights))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        check_side_maps(self.weights, model)

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        out, lse = context.encode.attention(inputs.q, cache, context)
        phi = query_features(inputs.q, self.weights["q"])
        state = jax.tree.map(lambda x: x[context.layer], cache.memory)
        whole, _ = joined([(out, lse), side_part(phi, state["a"], state["H"])])
        return whole, lse, cache
