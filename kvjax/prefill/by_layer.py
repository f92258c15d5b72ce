"""Prompts through the model one layer after the other: all chunks of a layer before the next, so that a layer can be let go.

Between two layers tokens may leave a prompt: the layers that follow never compute them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Integer

from kvjax import evidence as ev
from kvjax.checks import check_finite
from kvjax.prefill.attention import PrefillAttention, PrefillChunk
from kvjax.prefill.prefilled import PrefilledRow
from kvjax.prefill.run import _embed, _last_logits, _layer, layer_buffers, shape_of
from kvjax.protocols import LanguageModel
from kvjax.weights_mark import mark_of


@dataclass
class Reading:
    """One prompt between two layers; `through` takes it to the next.

    Attributes:
        tokens: int32 [n], padded.   pos: int32 [n], where they stand; behind the text for padding.
        length: tokens of the prompt.   held: how many of them are there, the first of `tokens`.
        attention: how it attends to itself.   chunk: tokens run at a time, if told.
        chunks: how it is cut.   x: the residual stream of each chunk, [1, t, e].
        made_by: uint32, mark of the model's weights.
        memory: where the residual stream is between two layers; a chunk's is on the device while it is run.
    """

    tokens: np.ndarray
    pos: np.ndarray
    length: int
    held: int
    chunks: list[PrefillChunk]
    x: list[jax.Array]
    attention: PrefillAttention
    chunk: int | None
    made_by: np.uint32
    memory: jax.memory.Space = jax.memory.Space.Device

    def stream(self, i: int) -> Float[jax.Array, "1 t e"]:
        """The residual stream of a chunk, on the device."""
        return jax.device_put(self.x[i], jax.memory.Space.Device)

    def put(self, i: int, x: Float[jax.Array, "1 t e"]) -> None:
        """Keep what a layer made of a chunk."""
        self.x[i] = jax.device_put(x, self.memory)


def begun(
    lm: LanguageModel, ids: list[int], attention: PrefillAttention, chunk: int | None,
    memory: jax.memory.Space = jax.memory.Space.Device,
) -> Reading:  # fmt: skip
    """A prompt before the first layer."""
    n, chunks = attention.plan(len(ids), chunk)
    tokens = _padded(np.asarray(ids, np.int32), n)
    parts = (jnp.asarray(tokens[None, part.offset : part.offset + part.width]) for part in chunks)
    x = [jax.device_put(_embed(lm.params, part, decoder=lm.decoder), memory) for part in parts]
    pos, length = np.arange(n, dtype=np.int32), len(ids)
    return Reading(tokens, pos, length, length, chunks, x, attention, chunk, mark_of(lm.params), memory)


def _padded(x: np.ndarray, n: int, fill: int = 0) -> np.ndarray:
    return np.pad(x, (0, n - len(x)), constant_values=fill)


def without(reading: Reading, stay: Integer[np.ndarray, " m"]) -> Reading:
    """The prompt once all tokens but `stay` (indices of `tokens`, ascending) have left it."""
    n, chunks = reading.attention.plan(len(stay), reading.chunk)
    parts = [reading.stream(i) for i in range(len(reading.x))]
    x = _taken(jnp.concatenate(parts, 1), jnp.asarray(_padded(stay.astype(np.int32), n)))
    return Reading(
        tokens=_padded(reading.tokens[stay], n),
        pos=_padded(reading.pos[stay], n, reading.length),
        length=reading.length,
        held=len(stay),
        chunks=chunks,
        x=[jax.device_put(x[:, part.offset : part.offset + part.width], reading.memory) for part in chunks],
        attention=reading.attention,
        chunk=reading.chunk,
        made_by=reading.made_by,
        memory=reading.memory,
    )


@jax.jit
def _taken(x: Float[jax.Array, "1 n e"], index: Integer[jax.Array, " m"]) -> Float[jax.Array, "1 m e"]:
    return x[:, index]


def through(lm: LanguageModel, reading: Reading, layer: int, needs: Iterable[ev.Need]) -> PrefilledRow:
    """One layer of a prompt: its keys, values and evidence. The logits are those after this layer: the model's after the last."""
    decoder, wanted = lm.decoder, ev.of_layer(needs, layer)
    n, dtype = len(reading.tokens), lm.params["embed"]["weight"].dtype
    k, v, evidence = layer_buffers(decoder, n, dtype, needs, layer)
    memory = reading.attention.begin(shape_of(decoder, n, dtype), layer)
    length, pos = jnp.asarray([reading.length], jnp.int32), jnp.asarray(reading.pos[None])
    for i, part in enumerate(reading.chunks):
        ids = jnp.asarray(reading.tokens[None, part.offset : part.offset + part.width])
        x, k, v, evidence, memory = _layer(
            lm.params["layers"][layer], reading.stream(i), k, v, evidence, memory, wanted, ids, pos, length, np.int32(part.offset),
            jnp.asarray([part.end], jnp.int32), decoder=decoder, window=decoder.windows[layer], attention=part.attention,
        )  # fmt: skip
        reading.put(i, x)
    last = _last_logits(lm.params, reading.stream(-1), np.int32(reading.held - 1 - part.offset), decoder=decoder)
    check_finite(last, "the logits of the prompt's last token")
    return PrefilledRow(
        ids=jnp.asarray(reading.tokens), length=length, k=(k,), v=(v,), evidence=(evidence.replace(length=length),), logits=last,
        pos=None if reading.held == reading.length else pos, made_by=jnp.asarray([reading.made_by]),
    )  # fmt: skip
