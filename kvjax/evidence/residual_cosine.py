"""How far a layer's attention turns the residual stream (SqueezeAttention)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32

from kvjax.evidence.need import Block, Need, Shape


@struct.dataclass
class Cosines:
    """Sum over the tokens, and how many there were."""

    total: Float32[Array, " b"]
    count: Float32[Array, " b"]

    def mean(self) -> Float32[Array, " b"]:
        return self.total / jnp.maximum(self.count, 1.0)


def cosines(x: Float[Array, "b t e"], added: Float[Array, "b t e"]) -> Float32[Array, "b t"]:
    """cos(x, x + added) of every token; 0 where either is zero."""
    x = x.astype(jnp.float32)
    y = x + added.astype(jnp.float32)
    size = jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1)
    return jnp.where(size > 0, (x * y).sum(-1) / jnp.where(size > 0, size, 1.0), 0.0)


@struct.dataclass
class ResidualCosine(Need):
    """Mean over the tokens of cos(x, x + Attn(x)), x the residual stream before the layer.

    Two numbers a layer; the output projection is done once more, without a bias (no family served here has one).
    """

    reads: ClassVar[tuple[str, ...]] = ("residual", "w_o")
    reads_out: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return "residual_cosine"

    def empty(self, shape: Shape) -> Cosines:
        zeros = jnp.zeros(shape.b, jnp.float32)
        return Cosines(total=zeros, count=zeros)

    def observe(self, old: Cosines, block: Block) -> Cosines:
        new = self.now(block)
        return Cosines(total=old.total + new.total, count=old.count + new.count)

    def now(self, block: Block) -> Cosines:
        added = jnp.einsum("bhgtd,ehgd->bte", block.out, block.inputs.w_o)
        c = cosines(block.inputs.residual, added)
        real = jnp.arange(c.shape[1]) < block.count[:, None]
        return Cosines(total=jnp.where(real, c, 0.0).sum(-1), count=block.count.astype(jnp.float32))
