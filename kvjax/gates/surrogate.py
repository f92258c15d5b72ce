"""The logarithm of what reading a text again would say of a token, guessed from its hidden state (KVzap)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from kvjax.gates.gate import Gate


class SurrogateGate(Gate):
    """x W + b, or gelu(x W1 + b1) W2 + b2, x the attention's normed input.

    It stands for ln max_t max_g A[t, j] ||v_j W_o|| / ||x_t||, the queries t and their inputs x_t those of the text read a second
    time.

    Args:
        heads: KV heads.   hidden: width of the layer between; 0 for none, the linear map.

    Source: KVzap, arXiv 2601.07891, section 3, as released.
    """

    heads: int
    hidden: int = 512

    @nn.compact
    def __call__(self, x: Float[Array, "b t e"]) -> Float32[Array, "b h t"]:
        x, exact = x.astype(jnp.float32), lax.Precision.HIGHEST
        if self.hidden:
            x = jax.nn.gelu(nn.Dense(self.hidden, precision=exact, name="up")(x), approximate=False)
        return jnp.swapaxes(nn.Dense(self.heads, precision=exact, name="down")(x), 1, 2)
