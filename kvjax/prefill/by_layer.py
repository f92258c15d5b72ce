"""Prompts through the model one layer after the other: all chunks of a layer before the next, so that a layer can be let go."""

from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from kvjax import evidence as ev
from kvjax.checks import check_finite
from kvjax.prefill.attention import PrefillAttention, PrefillChunk
from kvjax.prefill.prefilled import PrefilledRow
from kvjax.prefill.run import _embed, _last_logits, _layer, layer_buffers, shape_of
from kvjax.protocols import LanguageModel


@dataclass
class Reading:
    """One prompt between two layers; `through` takes it to the next.

    Attributes:
        attention: how it attends to itself.
        tokens: int32 [n], padded.   length: tokens of the prompt.
        chunks: how it is cut.   x: the residual stream of each chunk, [1, t, e].
    """

    attention: PrefillAttention
    tokens: np.ndarray
    length: int
    chunks: list[PrefillChunk]
    x: list[jax.Array]


def begun(lm: LanguageModel, ids: list[int], attention: PrefillAttention, chunk: int | None) -> Reading:
    """A prompt before the first layer."""
    n, chunks = attention.plan(len(ids), chunk)
    tokens = np.zeros(n, np.int32)
    tokens[: len(ids)] = ids
    parts = (jnp.asarray(tokens[None, part.offset : part.offset + part.width]) for part in chunks)
    return Reading(attention, tokens, len(ids), chunks, [_embed(lm.params, part, decoder=lm.decoder) for part in parts])


def through(lm: LanguageModel, reading: Reading, layer: int, needs: Iterable[ev.Need]) -> PrefilledRow:
    """One layer of a prompt: its keys, values and evidence. The logits are those after this layer: the model's after the last."""
    decoder, wanted = lm.decoder, ev.of_layer(needs, layer)
    n, dtype = len(reading.tokens), lm.params["embed"]["weight"].dtype
    k, v, evidence = layer_buffers(decoder, n, dtype, needs, layer)
    memory = reading.attention.at(layer).begin(shape_of(decoder, n, dtype))
    for i, part in enumerate(reading.chunks):
        ids = jnp.asarray(reading.tokens[None, part.offset : part.offset + part.width])
        reading.x[i], k, v, evidence, memory = _layer(
            lm.params["layers"][layer], reading.x[i], k, v, evidence, memory, wanted, ids, np.int32(part.offset),
            jnp.asarray([part.end], jnp.int32), decoder=decoder, window=decoder.windows[layer], attention=part.attention.at(layer),
        )  # fmt: skip
    last = _last_logits(lm.params, reading.x[-1], np.int32(reading.length - 1 - part.offset), decoder=decoder)
    check_finite(last, "the logits of the prompt's last token")
    return PrefilledRow(
        ids=jnp.asarray(reading.tokens), length=jnp.asarray([reading.length], jnp.int32), k=(k,), v=(v,), evidence=(evidence,),
        logits=last,
    )  # fmt: skip
