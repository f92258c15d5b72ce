"""The attention that keys receive while they are near."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, PyTree

from kvjax.evidence.need import Block, Need, Shape
from kvjax.ranges import Size


@struct.dataclass
class LocalMass(Need):
    """Σ_t A[t, j] over the queries t < j + window of the prompt, by query head.

    Recorded of prompts alone, read with exact, sparse or far-block attention.
    """

    window: Size = struct.field(pytree_node=False)

    @property
    def key(self) -> str:
        return f"local_mass_{self.window}"

    def empty(self, shape: Shape) -> Float32[Array, "b h g n"]:
        return jnp.zeros((shape.b, shape.h, shape.g, shape.n), jnp.float32)

    def observe(self, old: PyTree, block: Block) -> Float32[Array, "b h g n"]:
        return old + block.near_sums(self.window)
