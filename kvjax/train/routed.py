"""Layers that read earlier layers' keys and values, while a model is trained for it (R-CLA).

*Stochastic KV Routing: Enabling Adaptive Depth-Wise Cache Sharing*, arXiv 2604.22782.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.protocols import Decoder
from kvjax.train.attention import causal_attention

#: Keys and values that the layers before have made of the same text: [b h t d] each.
KeysValues = tuple[Float[Array, "b h t d"], Float[Array, "b h t d"]]


def random_sources(key: Array, rows: int, layers: int, share: float) -> Int32[Array, "b l"]:
    """source[b, l] = l' drawn evenly from 0 .. l - 1 with probability `share`, l itself else; layer 0 always reads itself.

    Drawn once a text and layer.
    """
    coin, which = jax.random.split(key)
    layer = jnp.arange(layers, dtype=jnp.int32)
    earlier = (jax.random.uniform(which, (rows, layers)) * layer).astype(jnp.int32)
    shared = (jax.random.uniform(coin, (rows, layers)) < share) & (layer > 0)
    return jnp.where(shared, earlier, layer)


def routed_forward(
    decoder: Decoder, params: PyTree, tokens: Int32[Array, "b t"], source: Int32[Array, "b l"], *, remat: bool = True
) -> Float[Array, "b t e"]:
    """The residual stream after the last layer, layer l of row b attending to the keys and values of layer source[b, l].

    Every layer makes keys and values, its queries are its own. Where `source` is 0, 1, 2, ... this is `forward`.

    Args:
        decoder, params: of a language model, layers of one shape and one sliding window.   source: at most the layer itself.
        remat: whether layers are computed again on the way back.
    """
    x, made = decoder.embed(params, tokens), ()
    for layer, weights in enumerate(params["layers"]):
        run = partial(_layer, decoder=decoder, window=decoder.windows[layer])
        x, own = (jax.checkpoint(run) if remat else run)(weights, x, made, source[:, layer])
        made = (*made, own)
    return x


def _layer(weights: PyTree, x: Array, made: tuple[KeysValues, ...], source: Array, *, decoder: Decoder, window: int | None):
    positions = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32), x.shape[:2])

    def attend(inputs: AttentionInputs) -> tuple[Array, KeysValues]:
        own = inputs.k, inputs.v
        k, v = (_of_source(jnp.stack(kinds, axis=1), source) for kinds in zip(*made, own, strict=True))
        return causal_attention(inputs.replace(k=k, v=v), window=window), own

    return decoder.layer(weights, x, positions, attend)


def _of_source(all_layers: Float[Array, "b l h t d"], source: Int32[Array, " b"]) -> Float[Array, "b h t d"]:
    return jnp.take_along_axis(all_layers, source[:, None, None, None, None], axis=1)[:, 0]
