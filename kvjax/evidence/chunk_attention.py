"""What a key receives from the queries of its own chunk, later ones included."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32

from kvjax.evidence.need import Block, Need, Shape
from kvjax.ranges import Size
from kvjax.types import Keys, Queries


def received(q: Queries, k: Keys, real: Bool[Array, "b n"], *, chunk: int, filled: bool) -> Float32[Array, "b h g n"]:
    """a_j = Σ_i softmax_j(q_i k_j) over the chunk of `chunk` tokens that j lies in; logits are not divided by sqrt(d).

    `filled`: tokens that are not real have logit 0, as queries and as keys; if not, they are left out.
    """
    b, h, g, n, d = q.shape
    pad = -n % chunk
    q, k = jnp.pad(q, ((0, 0),) * 3 + ((0, pad), (0, 0))), jnp.pad(k, ((0, 0),) * 2 + ((0, pad), (0, 0)))
    real = jnp.pad(real, ((0, 0), (0, pad))).reshape(b, -1, chunk)

    def of_chunk(part):
        q, k, real = part
        z = jnp.einsum("bhgtd,bhnd->bhgtn", q, k, preferred_element_type=jnp.float32)
        rows, columns = real[:, None, None, :, None], real[:, None, None, None]
        z = jnp.where(rows & columns, z, 0.0) if filled else jnp.where(columns, z, -jnp.inf)
        p = jax.nn.softmax(z, -1)
        return (p if filled else jnp.where(rows & columns, p, 0.0)).sum(-2)

    parts = q.reshape(b, h, g, -1, chunk, d).transpose(3, 0, 1, 2, 4, 5), k.reshape(b, h, -1, chunk, d).transpose(2, 0, 1, 3, 4)
    out = lax.map(of_chunk, (*parts, real.transpose(1, 0, 2)))
    return out.transpose(1, 2, 3, 0, 4).reshape(b, h, g, -1)[..., :n]


@struct.dataclass
class ChunkAttention(Need):
    """Attention received inside chunks, without a causal mask: see `received`. One number a query head and token.

    A prompt that is run in parts is cut at multiples of `chunk`. It is not defined while decoding.
    """

    reads: ClassVar[tuple[str, ...]] = ("q", "k")
    prompt_only: ClassVar[bool] = True
    chunk: Size = struct.field(pytree_node=False, default=256)
    filled: bool = struct.field(pytree_node=False, default=False)

    @property
    def key(self) -> str:
        return f"chunk_attention_{self.chunk}{'_filled' if self.filled else ''}"

    def empty(self, shape: Shape) -> Float32[Array, "b h g n"]:
        return jnp.zeros((shape.b, shape.h, shape.g, shape.n), jnp.float32)

    def observe(self, old: Float32[Array, "b h g n"], block: Block) -> Float32[Array, "b h g n"]:
        t = block.inputs.q.shape[3]
        if t != old.shape[-1] and t % self.chunk:
            raise ValueError(f"attention in chunks of {self.chunk} tokens: run the prompt in parts of a multiple of it, not of {t}")
        real = jnp.arange(t) < block.count[:, None]
        new = received(block.inputs.q, block.inputs.k, real, chunk=self.chunk, filled=self.filled)
        return lax.dynamic_update_slice_in_dim(old, new, block.offset[0], axis=3)

    def now(self, block: Block) -> Float32[Array, "b h g n"]:
        raise ValueError("attention in chunks of the prompt is not defined while decoding: use when=AfterPrefill()")
