"""How much of a token is left one step later, on one scale for all layers (DBTrimKV)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from kvjax.gates.gate import Gate


class DeepRetentionGate(Gate):
    """log β = log σ(silu(silu(x W1 + b1) W2 + b2) W3 + b3), x the attention's normed input; W3 and b3 may be shared by all layers.

    W is drawn from N(0, 0.02²), b1 and b2 are 0 and b3 is `bias`: β starts at almost 1.

    Args:
        heads: KV heads.   hidden: width of both layers between.   bias: b3 before training.

    Source: Make Each Token Count, arXiv 2605.09649, section 4.
    """

    heads: int
    hidden: int = 512
    bias: float = 18.0

    @nn.compact
    def __call__(self, x: Float[Array, "b t e"]) -> Float32[Array, "b h t"]:
        draw, exact = nn.initializers.normal(0.02), lax.Precision.HIGHEST
        x = x.astype(jnp.float32)
        for name in ("up", "across"):
            x = jax.nn.silu(nn.Dense(self.hidden, kernel_init=draw, precision=exact, name=name)(x))
        last = nn.initializers.constant(self.bias)
        down = nn.Dense(self.heads, kernel_init=draw, bias_init=last, precision=exact, name="down")
        return jnp.swapaxes(jax.nn.log_sigmoid(down(x)), 1, 2)
