"""The modules of one block in Flax linen: what they are and how they start. `Decoder` applies them to parameters."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from kvjax.attention_inputs import AttentionInputs
from kvjax.kernels.gated_linear import gated_linear
from kvjax.kernels.linear import linear as multiply
from models.config import DecoderConfig


def linear(
    x: Float[Array, "*rows i"],
    weight: Float[Array, "o i"],
    bias: Float[Array, " o"] | None = None,
    *,
    dtype: Any = None,
) -> Float[Array, "*rows o"]:
    """Return x @ weight.T + bias, weight (out, in) as Hugging Face stores it; `dtype` of the sums, x's where None."""
    y = multiply(x.reshape(-1, x.shape[-1]), weight, dtype=dtype).reshape(*x.shape[:-1], weight.shape[0])
    return y if bias is None else y + bias


class Module(nn.Module):
    """A linen module that trusts the parameters it is given: `weights` has checked their shapes once, at load."""

    def weights(self, name: str, init: Callable[..., Array], shape: tuple[int, ...], dtype: Any) -> Array:
        """Return the parameter, initialised where there is none yet; linen's own `param` doubles the tracing time."""
        if self.has_variable("params", name):
            return self.get_variable("params", name)
        return self.param(name, init, shape, dtype)

    def matrix(self, outputs: int, inputs: int, dtype: Any) -> Array:
        """Return this module's weight (out, in)."""
        init = nn.initializers.lecun_normal(in_axis=-1, out_axis=-2)
        return self.weights("weight", init, (outputs, inputs), dtype)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32, back in x's dtype (Zhang, Sennrich 2019)."""

    eps: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*rows c"]) -> Float[Array, "*rows c"]:
        weight = self.weights("weight", nn.initializers.ones, (x.shape[-1],), self.dtype)
        wide = x.astype(jnp.float32)
        wide = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * weight.astype(jnp.float32)).astype(x.dtype)


class Weight(Module):
    """A weight (out, in) alone."""

    features: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, inputs: int) -> Float[Array, "o i"]:
        return self.matrix(self.features, inputs, self.dtype)


class Linear(Module):
    """x @ weight.T (+ bias), weight (out, in)."""

    features: int
    bias: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*rows i"]) -> Float[Array, "*rows o"]:
        weight = self.matrix(self.features, x.shape[-1], self.dtype)
        # random biases, not zeros, so that a decoder which forgot them could not pass for one that has them
        bias = self.weights("bias", nn.initializers.normal(0.1), (self.features,), self.dtype) if self.bias else None
        return linear(x, weight, bias)


class Attention(Module):
    """Project to heads, norm and rotate them, hand them to `attend`, project what comes back."""

    config: DecoderConfig
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "b t e"],
        positions: Int32[Array, "b t"],
        attend: Callable[[AttentionInputs], tuple[Array, Any]],
        residual: Float[Array, "b t e"],
    ) -> tuple[Float[Array, "b t e"], Any]:
        output = Linear(x.shape[-1], self.config.out_bias, self.dtype, name="o")
        inputs = self._inputs(x, positions, residual)
        out, aux = attend(inputs)
        if out.shape != inputs.q.shape:
            raise ValueError(f"attend must return [b h g t d] = {inputs.q.shape}, got {out.shape}")
        out = jnp.transpose(out, (0, 3, 1, 2, 4)).reshape(*x.shape[:2], -1).astype(x.dtype)
        return output(out), aux

    def _inputs(self, x: Float[Array, "b t e"], positions: Int32[Array, "b t"], residual: Float[Array, "b t e"]) -> AttentionInputs:
        c, rope = self.config, self.config.rope
        queries_of = self._queries()
        q, k, v = queries_of(x), self._project("k", x, c.heads), self._project("v", x, c.heads)
        if c.qk_norm:
            k = RMSNorm(c.eps, self.dtype, name="k_norm")(k)
        k, v = jnp.swapaxes(k, 1, 2), jnp.swapaxes(v, 1, 2)
        # once, not again for every head that is turned: XLA would rather not keep them
        cos, sin = lax.optimization_barrier(rope.cos_sin(positions))
        return AttentionInputs(
            q=rope.rotate(q, cos[:, None, None], sin[:, None, None]),
            k=rope.rotate(k, cos[:, None], sin[:, None]),
            v=v,
            q_raw=q,
            k_raw=k,
            x=x,
            residual=residual,
            w_o=self._output_by_head(),
            queries_of=queries_of,
        )

    def _queries(self) -> Callable[[Array], Array]:
        """Un-rotated queries of any normed input, by modules that are made once."""
        c = self.config
        project = Linear(c.heads * c.groups * c.head_dim, c.qkv_bias, self.dtype, name="q")
        norm = RMSNorm(c.eps, self.dtype, name="q_norm") if c.qk_norm else None

        def queries_of(x: Float[Array, "b t e"]) -> Float[Array, "b h g t d"]:
            q = project(x).reshape(*x.shape[:2], c.heads, c.groups, c.head_dim)
            return jnp.transpose(q if norm is None else norm(q), (0, 2, 3, 1, 4))

        return queries_of

    def _output_by_head(self) -> Float[Array, "e h g d"] | None:
        """The output projection's weight with its input axis cut into heads; None while parameters are being made."""
        if not self.has_variable("params", "o"):
            return None
        weight, c = self.get_variable("params", "o")["weight"], self.config
        return weight.reshape(weight.shape[0], c.heads, c.groups, c.head_dim)

    def _project(self, name: str, x: Float[Array, "b t e"], count: int) -> Float[Array, "b t count d"]:
        out = Linear(count * self.config.head_dim, self.config.qkv_bias, self.dtype, name=name)(x)
        return out.reshape(*x.shape[:2], count, self.config.head_dim)


class MLP(Module):
    """down(silu(gate x) * up x) (Shazeer 2020, SwiGLU)."""

    hidden: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "b t e"]) -> Float[Array, "b t e"]:
        rows, down = x.reshape(-1, x.shape[-1]), Linear(x.shape[-1], dtype=self.dtype, name="down")
        gate, up = (Weight(self.hidden, self.dtype, name=name)(x.shape[-1]) for name in ("gate", "up"))
        return down(gated_linear(rows, gate, up).reshape(*x.shape[:-1], gate.shape[0]))


def _alone(x: Array) -> Array:
    """The sum over one device."""
    return x


class Block(Module):
    """One pre-norm layer: x + attention(norm x), then x + mlp(norm x).

    `total` adds up what devices that share the layer's heads and columns have of both sums.
    """

    config: DecoderConfig
    dtype: Any = jnp.float32
    total: Callable[[Array], Array] = _alone

    @nn.compact
    def __call__(
        self, x: Float[Array, "b t e"], positions: Int32[Array, "b t"], attend: Callable[[AttentionInputs], tuple[Array, Any]]
    ) -> tuple[Float[Array, "b t e"], Any]:
        c = self.config
        normed = RMSNorm(c.eps, self.dtype, name="attention_norm")(x)
        out, aux = Attention(c, self.dtype, name="attention")(normed, positions, attend, x)
        x = x + self.total(out)
        return x + self.total(MLP(c.hidden, self.dtype, name="mlp")(RMSNorm(c.eps, self.dtype, name="mlp_norm")(x))), aux
