"""What the loss of a text feels of every cached number: keys before the rotary embedding, values, and the gradients at both."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.calibrate.codebooks import silent
from kvjax.protocols import Decoder, LanguageModel
from kvjax.train.forward import Attend, by_blocks, forward

Shift = tuple[Float[Array, "*l b h t d"], Float[Array, "*l b h t d"]]


@dataclass(frozen=True)
class CacheGradients:
    """Of every token of each text but those left out, one text behind the other, float32 [l, h, n, d].

    Attributes:
        k, v: keys before the rotary embedding, and values.
        dk, dv: gradients of the text's summed loss at them.
    """

    k: Float32[np.ndarray, "l h n d"]
    v: Float32[np.ndarray, "l h n d"]
    dk: Float32[np.ndarray, "l h n d"]
    dv: Float32[np.ndarray, "l h n d"]


def gradients_of(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], progress: Callable[[int, int], None] = silent, *, sinks: int
) -> CacheGradients:
    """The four tables of some texts. A head's t² scores are alive at a time.

    Args:
        progress: called with (texts done, texts in all).
        sinks: first tokens of a text, where attention rests, that are left out: those that a cache keeps exact.

    Raises:
        ValueError: no text, or one of fewer than two tokens.
    """
    if not prompts or any(len(ids) < 2 for ids in prompts):
        raise ValueError("every text needs two tokens or more, so that there is one to predict")
    found = []
    for ids in prompts:
        one = _of_one(lm.params, jnp.asarray([list(ids)], jnp.int32), decoder=lm.decoder)
        found.append([np.asarray(part)[:, 0, :, sinks:] for part in one])
        progress(len(found), len(prompts))
    return CacheGradients(*(np.concatenate(parts, 2) for parts in zip(*found, strict=True)))


@partial(jax.jit, static_argnames="decoder")
def _of_one(params: PyTree, ids: Int32[Array, "b t"], *, decoder: Decoder) -> tuple[Float32[Array, "l b h t d"], ...]:
    shape = (decoder.layers, ids.shape[0], decoder.heads, ids.shape[1], decoder.head_dim)
    nothing = jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32)
    gradients, cached = jax.grad(lambda shift: _loss(decoder, params, ids, shift), has_aux=True)(nothing)
    k, v = (jnp.stack(x).astype(jnp.float32) for x in zip(*cached, strict=True))
    return k, v, *gradients


def _loss(decoder: Decoder, params: PyTree, ids: Int32[Array, "b t"], shift: Shift) -> tuple[Float32[Array, ""], list]:
    """The summed loss of the next tokens with every cached number moved by `shift`, and what is cached."""
    cos, sin = decoder.rope.cos_sin(jnp.arange(ids.shape[1], dtype=jnp.int32)[None, None])

    def hook(layer: int, shift: Shift, inputs: AttentionInputs, attend: Attend) -> tuple[Array, tuple[Array, Array]]:
        del layer
        turned = decoder.rope.rotate(shift[0].astype(inputs.k.dtype), cos, sin)
        moved = inputs.replace(k=inputs.k + turned, v=inputs.v + shift[1].astype(inputs.v.dtype))
        return attend(moved), (inputs.k_raw, inputs.v)

    x, cached = forward(decoder, params, ids, hook=hook, gates=shift)
    return by_blocks(_surprise, decoder, params, x[:, :-1], ids[:, 1:]).sum(), cached


def _surprise(logits: Float[Array, "b c v"], ids: Int32[Array, "b c"]) -> Float32[Array, "b c"]:
    """-log p of each next token."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32), -1)
    return -jnp.take_along_axis(log_p, ids[..., None], -1)[..., 0]
