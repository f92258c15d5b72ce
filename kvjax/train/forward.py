"""The same decoder as everywhere, differentiable: whole texts at once, a hook in every layer's attention.

The pass of `kvjax.prefill` cannot be reversed: its loops end where the data say. Here everything is static, and each layer is
computed again on the way back (`jax.checkpoint`), so that between layers only the residual stream is kept: b·t·e numbers a layer,
and one layer's t² scores while it is reversed.

A hook sees a layer's attention inputs and may add to its logits, mix several attentions, and give back what a loss wants to know:

    def hook(layer, weights, inputs, attend):
        log_beta = gate.apply({"params": weights}, inputs.x)
        return attend(inputs, decay(log_beta)), log_beta

    x, aux = forward(decoder, params, tokens, hook=hook, gates=weights_of_all_layers)
    nll = by_blocks(loss_of_logits, decoder, params, x, targets)
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.protocols import Decoder
from kvjax.train.attention import causal_attention

#: A layer's causal attention, its sliding window included: attend(inputs, bias=None), see `causal_attention`.
Attend = Callable[..., Array]
#: What stands in for it: hook(layer, weights, inputs, attend) -> (out [b h g t d], whatever a loss reads of the layer), where
#: `weights` are the layer's share of `gates`.
Hook = Callable[[int, PyTree, AttentionInputs, Attend], tuple[Array, PyTree]]


def plain(layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "b h g t d"], tuple[()]]:
    """No gate: attention as it is."""
    del layer, weights
    return attend(inputs), ()


def forward(
    decoder: Decoder, params: PyTree, tokens: Int32[Array, "b t"], *, hook: Hook = plain, gates: PyTree = (), remat: bool = True,
    embedded: Float[Array, "b t e"] | None = None,
) -> tuple[Float[Array, "b t e"], list[PyTree]]:  # fmt: skip
    """(residual stream after the last layer, what the hook gave back of each layer).

    Args:
        decoder, params: of a language model.   tokens: rows from position 0 on; what pads a row on the right changes nothing before
            it.
        hook: see `Hook`.   gates: its weights, each leaf [l, ...]; a function of them can be differentiated.
        remat: whether layers are computed again on the way back.
        embedded: what enters the first layer, in place of the tokens' embeddings; rows may be more than the tokens.
    """
    x, aux = decoder.embed(params, tokens) if embedded is None else embedded, []
    for layer, weights in enumerate(params["layers"]):
        run = partial(_layer, decoder=decoder, layer=layer, hook=hook)
        run = jax.checkpoint(run) if remat else run
        x, left = run(weights, jax.tree.map(lambda w: w[layer], gates), x)  # noqa: B023
        aux.append(left)
    return x, aux


def _layer(weights: PyTree, gate: PyTree, x: Float[Array, "b t e"], *, decoder: Decoder, layer: int, hook: Hook):
    positions = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32), x.shape[:2])
    attend = partial(causal_attention, window=decoder.windows[layer])
    return decoder.layer(weights, x, positions, lambda inputs: hook(layer, gate, inputs, attend))


def by_blocks(
    f: Callable[..., PyTree], decoder: Decoder, params: PyTree, x: Float[Array, "b t e"], *targets: Array, block: int = 512
) -> PyTree:
    """f(logits [b c v], targets [b c ...]) of c tokens at a time, the results [b c ...] joined along the tokens.

    The logits of one block are alive, on the way back too.

    Args:
        x: from `forward`.   targets: arrays [b, t, ...] that f reads beside the logits.   block: c.
    """
    t, block = x.shape[1], min(block, x.shape[1])
    blocks = -(-t // block)

    @jax.checkpoint
    def one(part):
        return f(decoder.unembed(params, part[0]), *part[1:])

    def cut(a: Array) -> Array:
        padded = jnp.pad(a, ((0, 0), (0, blocks * block - t)) + ((0, 0),) * (a.ndim - 2))
        return jnp.swapaxes(padded.reshape(a.shape[0], blocks, block, *a.shape[2:]), 0, 1)

    def joined(a: Array) -> Array:
        return jnp.swapaxes(a, 0, 1).reshape(a.shape[1], blocks * block, *a.shape[3:])[:, :t]

    return jax.tree.map(joined, lax.map(one, tuple(cut(a) for a in (x, *targets))))
