"""How much of a token is left one step later (TRIM-KV)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from kvjax.gates.gate import Gate


class RetentionGate(Gate):
    """log β = log σ(silu(x W1 + b1) W2 + b2), x the attention's normed input.

    W is drawn from N(0, 0.02²), b1 is 0 and b2 is `bias`: β starts at almost 1.

    Args:
        heads: KV heads.   hidden: width of the layer between.   bias: b2 before training.

    Source: TRIM-KV, arXiv 2512.03324, section 4.1, as released (18 in its scripts, 10 in its configuration class).
    """

    heads: int
    hidden: int = 512
    bias: float = 18.0

    @nn.compact
    def __call__(self, x: Float[Array, "b t e"]) -> Float32[Array, "b h t"]:
        draw, exact = nn.initializers.normal(0.02), lax.Precision.HIGHEST
        up = nn.Dense(self.hidden, kernel_init=draw, precision=exact, name="up")
        down = nn.Dense(self.heads, kernel_init=draw, bias_init=nn.initializers.constant(self.bias), precision=exact, name="down")
        return jnp.swapaxes(jax.nn.log_sigmoid(down(jax.nn.silu(up(x.astype(jnp.float32))))), 1, 2)
