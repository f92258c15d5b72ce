"""Attention by the device that holds a head, projections by the device that has its weights.

Weights stay where they were loaded: device n of a group has the projections of KV heads n·h .. n·h + h - 1 of every layer. Which
heads' slots it holds is another matter, chosen layer by layer so that devices hold as many slots as each other. Between the two, a
token's queries, keys and values go to the devices that hold their regions, and outputs come back: B·H·(g + 2)·d and B·H·g·d numbers
a layer and token, whatever the length of the text.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.protocols import DividedDecoder


@dataclass(frozen=True)
class Routed:
    """One device's part of a decoder, whose `attend` is given the heads that the device holds.

    Attributes:
        decoder: the device's part of the model.   axis: the mesh axis of the devices that share the heads.
    """

    decoder: DividedDecoder
    axis: str

    layers = property(lambda self: self.decoder.layers)
    heads = property(lambda self: self.decoder.heads)
    groups = property(lambda self: self.decoder.groups)
    head_dim = property(lambda self: self.decoder.head_dim)
    windows = property(lambda self: self.decoder.windows)
    rope = property(lambda self: self.decoder.rope)

    def embed(self, params: PyTree, tokens: Int32[Array, "b t"]) -> Float[Array, "b t e"]:
        """Those of the model."""
        return self.decoder.embed(params, tokens)

    def unembed(self, params: PyTree, x: Float[Array, "b t e"]) -> Float[Array, "b t v"]:
        """Those of the model."""
        return self.decoder.unembed(params, x)

    def layer(self, weights: PyTree, x: Float[Array, "b t e"], positions: Int32[Array, "b t"], attend: Callable):
        """A layer by `weights` of `with_routes`."""
        weights, here, back = weights

        def attend_here(inputs: AttentionInputs):
            out, aux = attend(_routed(inputs, here, self.axis))
            return _gathered(out, self.axis)[:, back], aux

        return self.decoder.layer(weights, x, positions, attend_here)


def with_routes(params: PyTree, heads: Int32[Array, "l h"], axis: str) -> PyTree:
    """Parameters whose layers know which heads this device holds, and where those that it projects are held.

    Args:
        heads: KV heads whose regions this device holds, by layer.
    """
    first = lax.axis_index(axis) * heads.shape[1]
    held = _gathered(heads, axis)
    home = lax.dynamic_slice_in_dim(jnp.argsort(held, -1), first, heads.shape[1], 1)
    return {**params, "layers": [(w, heads[layer], home[layer]) for layer, w in enumerate(params["layers"])]}


def _routed(inputs: AttentionInputs, here: Int32[Array, " h"], axis: str) -> AttentionInputs:
    """The inputs of the heads that are held here. Fields that nobody reads move nothing: the compiler drops them."""

    def of_heads(x):
        return None if x is None else _gathered(x, axis)[:, here]

    q, k, v = inputs.q, inputs.k[:, :, None], inputs.v[:, :, None]
    together = of_heads(jnp.concatenate([q, k, v], 2))
    w_o, queries_of = inputs.w_o, inputs.queries_of
    return inputs.replace(
        q=together[:, :, :-2],
        k=together[:, :, -2],
        v=together[:, :, -1],
        q_raw=of_heads(inputs.q_raw),
        k_raw=of_heads(inputs.k_raw),
        w_o=of_heads(w_o),
        queries_of=None if queries_of is None else lambda x: of_heads(queries_of(x)),
    )


def _gathered(x: jax.Array, axis: str) -> jax.Array:
    """[_, h, ...] of all devices of the axis, [_, H, ...]."""
    return lax.all_gather(x, axis, axis=1, tiled=True)
