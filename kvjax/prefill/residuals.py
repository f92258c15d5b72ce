"""Residual streams kept instead of keys and values, which are made from them again when they are wanted (KV-Direct).

*The Residual Stream Is All You Need: On the Redundancy of the KV Cache in Transformer Inference*, arXiv 2603.19664.
A layer's keys and values of a token are its projections of the stream that enters the layer there: k = RoPE(W_k norm(x), pos),
v = W_v norm(x). The stream that enters a later layer is no function of an earlier one of that token alone: attention in between
reads the other tokens. So there are two exact modes:

- every layer's stream is kept, `stride=1`: `projected` gives a layer's keys and values by two projections. e numbers a token and
  layer, where the keys and values they stand for are 2 h d: fewer only where query heads do not share KV heads;
- one stream for every `stride` layers, or the token ids alone, `stride=None`: `rebuilt` runs the layers in between again over the
  whole prompt, as costly as a prefill of them.

What is exact: `rebuilt` runs the prefill's own programs on the numbers they had, and is the prefill to the bit, on the same machine
with the same chunks. `projected` is another program: the same up to the rounding of the model's dtype. A prompt whose slots were
evicted is restored as well as any other: nothing here depends on what a cache kept.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, PyTree

from kvjax import evidence as ev
from kvjax.checks import check_prompts
from kvjax.prefill.attention import CausalAttention
from kvjax.prefill.by_layer import begun, through
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.prefill.run import resolve_needs
from kvjax.protocols import Decoder, LanguageModel
from kvjax.types import Keys, Values


@struct.dataclass
class Residuals:
    """Prompts as token ids, and the residual streams that enter some layers.

    Attributes:
        ids: of each prompt.
        x: for each prompt and each layer 0, stride, 2 stride, ...: its chunks [1, t, e], padded as the prefill's.
        stride: layers for each stream; None: ids alone.   chunk: tokens of a chunk, as in `kvjax.prefill`.
    """

    ids: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)
    x: tuple[tuple[tuple[Float[Array, "1 t e"], ...], ...], ...]
    stride: int | None = struct.field(pytree_node=False, default=1)
    chunk: int | None = struct.field(pytree_node=False, default=None)

    @property
    def nbytes(self) -> int:
        """Bytes of the streams, and four a token of the ids."""
        return sum(x.nbytes for x in jax.tree.leaves(self.x)) + 4 * sum(map(len, self.ids))


def stream_nbytes(layers: int, width: int, stride: int | None, itemsize: int = 2) -> int:
    """Bytes of a token: e numbers for every `stride` layers begun, beside its id; 4 of the id alone."""
    return 4 if stride is None else -(-layers // stride) * width * itemsize


def residuals(lm: LanguageModel, prompts: object, *, stride: int | None = 1, chunk: int | None = None) -> Residuals:
    """Read prompts and keep their residual streams.

    Args:
        lm: the language model.   prompts: token ids, or rows of them.
        stride: layers for each stream that is kept; None keeps the ids alone.   chunk: as in `kvjax.prefill`.

    Raises:
        ValueError: a stride below 1; prompts that do not fit.
    """
    if stride is not None and stride < 1:
        raise ValueError(f"a stream is kept for every 1 or more layers, or for none with stride=None; got {stride}")
    rows = check_prompts(prompts, lm.decoder)
    x = () if stride is None else tuple(_streams(lm, ids, stride, chunk) for ids in rows)
    return Residuals(ids=tuple(map(tuple, rows)), x=x, stride=stride, chunk=chunk)


def _streams(lm: LanguageModel, ids: list[int], stride: int, chunk: int | None) -> tuple[tuple[jax.Array, ...], ...]:
    reading, kept = begun(lm, ids, CausalAttention(), chunk), []
    for layer in range(lm.decoder.layers):
        if layer % stride == 0:
            kept.append(tuple(map(jnp.copy, reading.x)))  # the layer's program takes its stream over
        through(lm, reading, layer, ())
    return tuple(kept)


def rebuilt(lm: LanguageModel, kept: Residuals, *, needs: object = ev.STANDARD) -> Prefilled:
    """The prompts prefilled again, from the streams that are there: to the bit what `kvjax.prefill` gives.

    Args:
        lm: the model that read them.   kept: from `residuals`.   needs: as in `kvjax.prefill`.
    """
    wanted = resolve_needs(needs)
    rows = tuple(_row(lm, kept, r, wanted) for r in range(len(kept.ids)))
    return Prefilled(rows=rows, needs=ev.ordered(wanted), decoder=lm.decoder)


def _row(lm: LanguageModel, kept: Residuals, r: int, needs: object) -> PrefilledRow:
    """One prompt, layer after layer, each stretch from its own stream."""
    reading = begun(lm, list(kept.ids[r]), CausalAttention(), kept.chunk)
    layers = []
    for layer in range(lm.decoder.layers):
        if kept.stride is not None and layer % kept.stride == 0:
            reading.x[:] = map(jnp.copy, kept.x[r][layer // kept.stride])
        layers.append(through(lm, reading, layer, needs))
    k, v, evidence = (tuple(getattr(row, name)[0] for row in layers) for name in ("k", "v", "evidence"))
    return layers[-1].replace(k=k, v=v, evidence=evidence)


def projected(lm: LanguageModel, kept: Residuals, row: int, layer: int) -> tuple[Keys, Values]:
    """A layer's keys and values [1, h, n, d] of one prompt, from the stream that enters the layer: two projections a token.

    Raises:
        ValueError: a layer whose stream was not kept.
    """
    if kept.stride is None or layer % kept.stride:
        raise ValueError(f"the stream of layer {layer} was not kept, with stride={kept.stride}: use rebuilt(lm, kept)")
    chunks = kept.x[row][layer // kept.stride]
    at = np.cumsum([0, *(x.shape[1] for x in chunks)])[:-1]
    pairs = [_project(lm.params["layers"][layer], x, np.int32(i), decoder=lm.decoder) for x, i in zip(chunks, at, strict=True)]
    k, v = (jnp.concatenate(x, 2)[:, :, : len(kept.ids[row])] for x in zip(*pairs, strict=True))
    return k, v


def _project(weights: PyTree, x: Float[Array, "1 t e"], offset: np.int32, *, decoder: Decoder) -> tuple[Keys, Values]:
    """The keys and values of a layer; nothing else of it is computed."""

    def both(weights, x, offset):
        positions = offset + jnp.arange(x.shape[1], dtype=jnp.int32)[None]

        def attend(inputs):
            return (jnp.zeros_like(inputs.q), (inputs.k, inputs.v))

        return decoder.layer(weights, x, positions, attend)[1]

    return jax.jit(both)(weights, x, offset)
