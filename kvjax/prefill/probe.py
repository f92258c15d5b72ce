"""A second pass: other tokens read the prompt's frozen keys and values, and evidence records what they make of them.

Probe tokens stand at positions n, n + 1, ... after the prompt and attend causally to all of it and to each other, in every layer,
as if they had been written behind it; then they are forgotten. Nothing of the prompt changes. Layers are run one after another,
each over all chunks of the probe, so that the probe's keys and values of one layer at a time are alive.

Softmax: what a need is told are probabilities over all the keys a probe token sees, the prompt's and the probe's own, so that the
prompt's part of a row sums to less than 1. With a `span` only the first `sinks` keys of the prompt, those of the span and the
probe's own take part; the pass itself still attends to everything. Keys outside the span are told nothing.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from kvjax import evidence as ev
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.heap import trim
from kvjax.evidence import Probed
from kvjax.gates.soft_tokens import SoftTokens
from kvjax.kernels.prefill_attention import prefill_attention
from kvjax.prefill.attention import CausalAttention
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.prefill.probe_block import ProbeBlock
from kvjax.prefill.probe_checks import Span, check_probe, probe_needs
from kvjax.prefill.run import _embed
from kvjax.protocols import LanguageModel
from kvjax.types import size_class


@partial(jax.jit, static_argnames="room")
def _behind(x, *, room):
    """A prompt's keys or values with room for a probe's."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, room), (0, 0)))


@partial(jax.jit, static_argnames=("decoder", "window", "n", "width", "sinks"), donate_argnames=("x", "k", "v"))
def _layer(weights, x, k, v, data, needs, soft, ids, length, offset, end, begin, span, *, decoder, window, n, width, sinks):
    """One layer over one chunk of a probe; k and v hold the prompt's n rows at most, then the probe's."""
    weights = weights if soft is None else soft.read_by(weights)
    at = offset + jnp.arange(x.shape[1], dtype=jnp.int32)[None]
    count = jnp.clip(end - offset, 0, x.shape[1])[None]

    def attend(inputs: AttentionInputs, after=None):
        if after is not None:  # another layer's queries over the keys and values just stored
            return prefill_attention(inputs.q, *after[:2], offset=offset, window=window)[0], after
        keys = jax.lax.dynamic_update_slice_in_dim(k, inputs.k.astype(k.dtype), offset, axis=2)
        values = jax.lax.dynamic_update_slice_in_dim(v, inputs.v.astype(v.dtype), offset, axis=2)
        out, _ = prefill_attention(inputs.q, keys, values, offset=offset, window=window)
        block = ProbeBlock(
            inputs=inputs, ids=ids, out=out, k=keys, offset=offset[None], count=count, length=length, span=span, begin=begin, n=n,
            width=width, sinks=sinks, window=window,
        )  # fmt: skip
        return out, (keys, values, ev.folded(data, needs, block))

    x, (k, v, data) = decoder.layer(weights, x, at, attend)
    return x, k, v, data


def probe_row(
    lm: LanguageModel, row: PrefilledRow, ids: Sequence[int], needs: Iterable[Probed], *, span: Span | None = None, sinks: int = 0,
    asked: int = 0, chunk: int | None = None, soft: SoftTokens | None = None,
) -> PrefilledRow:  # fmt: skip
    """One prompt after one probe: see `probe`. With learned tokens `soft`, ids say how many there are and nothing else.

    The first `asked` tokens of the probe are read, and do not count.
    """
    decoder, n, length = lm.decoder, row.ids.shape[0], int(row.length[0])
    room, chunks = CausalAttention().plan(len(ids), chunk)
    tokens = np.zeros((1, room), np.int32)
    tokens[0, : len(ids)] = ids
    parts = [jnp.asarray(tokens[:, part.offset : part.offset + part.width]) for part in chunks]
    xs = _embedded(lm, parts, chunks, soft)
    start, stop = span or (0, length)
    sizes = dict(n=n, width=min(n, size_class(stop - start, steps=8)), sinks=min(sinks, n))
    where = *(np.int32(length + x) for x in (0, len(ids), asked)), np.array([start, stop], np.int32)
    evidence = []
    for layer, (weights, window) in enumerate(zip(lm.params["layers"], decoder.windows, strict=True)):
        k, v = (_behind(x[layer], room=room) for x in (row.k, row.v))
        wanted, old = ev.of_layer(needs, layer), row.evidence[layer]
        data, learned = _begun(wanted, old, n, lm), soft and soft.at(layer)
        for i, (ids_of, part) in enumerate(zip(parts, chunks, strict=True)):
            xs[i], k, v, data = _layer(
                weights, xs[i], k, v, data, wanted, learned, ids_of, where[0], np.int32(length + part.offset), *where[1:],
                decoder=decoder, window=window, **sizes,
            )  # fmt: skip
        evidence.append(old.replace(data=old.data | data))
    return row.replace(evidence=tuple(evidence))


def _embedded(lm: LanguageModel, ids: list, chunks: list, soft: SoftTokens | None) -> list[Array]:
    """The first residual stream of every chunk of a probe."""
    if soft is None:
        return [_embed(lm.params, part, decoder=lm.decoder) for part in ids]
    room = chunks[-1].offset + chunks[-1].width
    x = jnp.pad(soft.tokens, ((0, room - len(soft.tokens)), (0, 0))).astype(lm.params["embed"]["weight"].dtype)
    return [x[None, part.offset : part.offset + part.width] for part in chunks]


def _begun(needs: Iterable[Probed], old: ev.Evidence, n: int, lm: LanguageModel) -> dict[str, object]:
    """What earlier probes of the same names have left, or nothing yet."""
    decoder = lm.decoder
    shape = ev.Shape(
        b=1, h=decoder.heads, g=decoder.groups, n=n, d=decoder.head_dim, e=decoder.config.width,
        dtype=lm.params["embed"]["weight"].dtype,
    )  # fmt: skip
    return {need.key: old.data[need.key] if need.key in old.data else need.empty(shape) for need in needs}


def probe(lm, pre: Prefilled, tokens, needs, *, span: Span | None = None, sinks: int = 0, chunk: int | None = None) -> Prefilled:
    """Run other tokens over prefilled prompts and record what they attend to, beside what is recorded already.

    Each row runs the program it would run alone. Probes of one length class and prompts of one bucket share their programs.

    Args:
        lm: the model `pre` came from.
        pre: prompts from `kvjax.prefill`; it stays as it is, and shares keys and values with the result.
        tokens: token ids for every prompt, or a list of them for each.
        needs: a set of `kvjax.evidence` needs. `need` is recorded as `Probed(need)`; read it with `evidence.of(Probed(need))`.
            What an earlier probe has recorded under the same name is folded on.
        span: (start, stop) of the prompt's keys that are told about (see above), for every prompt; None: all of them.
        sinks: first keys of the prompt that take part in the softmax of a span that lies behind them.
        chunk: tokens run through a layer at a time, a multiple of 64.

    Raises:
        TypeError, ValueError: no prefilled prompts, or another model's; an empty probe, ids outside the vocabulary, or more tokens
            than the model's context has room for; needs with an entry a token, or of another kind under a name in use; a span
            outside the prompt.
    """
    found = probe_needs(needs)
    rows = check_probe(lm, pre, tokens, found, span=span, sinks=sinks, chunk=chunk)
    trim()
    made = (
        probe_row(lm, row, ids, found, span=span, sinks=sinks, chunk=chunk) for row, ids in zip(pre.rows, rows, strict=True)
    )  # fmt: skip
    return with_rows(pre, tuple(made), found)


def with_rows(pre: Prefilled, rows: tuple[PrefilledRow, ...], needs: Iterable[Probed]) -> Prefilled:
    """The prompts with more evidence."""
    return pre.replace(rows=rows, needs=ev.ordered({need.key: need for need in (*pre.needs, *needs)}.values()))
