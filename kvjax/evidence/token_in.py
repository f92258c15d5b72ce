"""Which tokens are of a given set."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool

from kvjax.evidence.need import Block, Shape
from kvjax.evidence.per_token import PerToken


@struct.dataclass
class TokenIn(PerToken):
    """1[token ∈ ids], [b n] of a prompt, [b t] of a step."""

    reads: ClassVar[tuple[str, ...]] = ()
    ids: tuple[int, ...] = struct.field(pytree_node=False, default=())

    @property
    def key(self) -> str:
        return f"token_in_{'_'.join(map(str, self.ids))}"

    def empty(self, shape: Shape) -> Bool[Array, "b n"]:
        return jnp.zeros((shape.b, shape.n), bool)

    def now(self, block: Block) -> Bool[Array, "b t"]:
        return jnp.isin(block.ids, jnp.asarray(self.ids, jnp.int32))
