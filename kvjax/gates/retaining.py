"""The most attention that an answer will pay a token (Locret)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from kvjax.gates.gate import Gate


class RetainingGate(Gate):
    """silu([q; k; v] W1) W2, of a token's queries, keys and values before the rotary embedding, all heads side by side.

    It stands for max_t max_g A[t, j], the queries t those of the answer.

    Args:
        heads: KV heads.   hidden: width of the layer between.

    Source: Locret, arXiv 2410.01805, section 3.2.
    """

    reads = ("q_raw", "k_raw", "v")

    heads: int
    hidden: int = 1024

    @nn.compact
    def __call__(
        self, q: Float[Array, "b h g t d"], k: Float[Array, "b h t d"], v: Float[Array, "b h t d"]
    ) -> Float32[Array, "b h t"]:
        def side(x):
            return jnp.moveaxis(x, -2, 1).reshape(x.shape[0], x.shape[-2], -1)

        x, exact = jnp.concatenate([side(q), side(k), side(v)], -1).astype(jnp.float32), lax.Precision.HIGHEST
        up = nn.Dense(self.hidden, use_bias=False, precision=exact, name="up")
        down = nn.Dense(self.heads, use_bias=False, precision=exact, name="down")
        return jnp.swapaxes(down(jax.nn.silu(up(x))), 1, 2)
