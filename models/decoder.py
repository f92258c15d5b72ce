"""The decoder as pure functions of its parameters, with one hole per layer: `attend`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from models.config import DecoderConfig
from models.layers import Block, RMSNorm, linear
from models.rope import Rope


@dataclass(frozen=True)
class Decoder:
    """One decoder for the four families: hashable and without arrays, so a static argument of jit.

    Parameters are {"embed": {"weight" [v e]}, "layers": [one dict a layer], "norm": {"weight" [e]},
    "head": {"weight" [v e]}}, the head absent where it is tied.

    Attributes:
        config: all sizes.
        retrofit: the origin of the artefact whose weights the parameters hold in place of their own; "" for none.
    """

    config: DecoderConfig
    retrofit: str = field(default="", kw_only=True)

    layers = property(lambda self: self.config.layers, doc="Number of layers.")
    heads = property(lambda self: self.config.heads, doc="KV heads, h.")
    groups = property(lambda self: self.config.groups, doc="Query heads per KV head, g.")
    head_dim = property(lambda self: self.config.head_dim, doc="Head dimension, d.")
    vocab = property(lambda self: self.config.vocab, doc="Vocabulary size, v.")
    max_positions = property(lambda self: self.config.max_positions, doc="Positions the rotary embedding serves.")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Per layer: keys j of query i are visible where i - window < j <= i; None is full attention."""
        return self.config.windows

    @property
    def rope(self) -> Rope:
        """The rotary embedding, the same in every layer."""
        return self.config.rope

    def embed(self, params: PyTree, tokens: Int32[Array, "b t"]) -> Float[Array, "b t e"]:
        """Return the embedding rows of `tokens`; an id outside the vocabulary gives NaN, never another token's row."""
        return jnp.take(params["embed"]["weight"], tokens, axis=0, mode="fill")

    def layer(
        self,
        weights: PyTree,
        x: Float[Array, "b t e"],
        positions: Int32[Array, "b t"],
        attend: Callable[[AttentionInputs], tuple[Array, Any]],
    ) -> tuple[Float[Array, "b t e"], Any]:
        """Return (x after the layer, aux of `attend`).

        Args:
            weights: params["layers"][l].
            x: the residual stream.
            positions: absolute position of each token; the rotary angles use these and nothing else.
            attend: AttentionInputs -> (out [b h g t d], aux); masks (causal, padding, this layer's window) are its business.
        """
        return Block(self.config, x.dtype).apply({"params": weights}, x, positions, attend)

    def norm(self, params: PyTree, x: Float[Array, "b t e"]) -> Float[Array, "b t e"]:
        """Return norm(x): the final hidden state."""
        return RMSNorm(self.config.eps, x.dtype).apply({"params": params["norm"]}, x)

    def unembed(self, params: PyTree, x: Float[Array, "b t e"]) -> Float32[Array, "b t v"]:
        """Return float32 logits: head(norm(x)), the head being the embedding where tied."""
        normed = self.norm(params, x)
        head = params["embed"] if self.config.tied else params["head"]
        return linear(normed, head["weight"], dtype=jnp.float32)

    def init(self, key: Array, dtype: Any = jnp.float32) -> PyTree:
        """Return random parameters: normal with variance 1 / fan-in, norms at one; `dtype` of every leaf."""
        c, dtype = self.config, jnp.dtype(dtype)
        embed, head, *layers = jax.random.split(key, 2 + c.layers)
        x, positions = jnp.zeros((1, 1, c.width), dtype), jnp.zeros((1, 1), jnp.int32)
        block = Block(c, dtype)
        params = {
            "embed": {"weight": jax.random.normal(embed, (c.vocab, c.width), dtype)},
            "layers": [block.init(k, x, positions, lambda inputs: (inputs.q, None))["params"] for k in layers],
            "norm": {"weight": jnp.ones((c.width,), dtype)},
        }
        if not c.tied:
            params["head"] = {"weight": jax.random.normal(head, (c.vocab, c.width), dtype) * c.width**-0.5}
        return params
