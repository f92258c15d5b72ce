"""Prefill: a prompt through the model once, its keys, values and evidence kept as an immutable value.

Layers are run one after another by one jitted program each prompt-length bucket shares, so compile time does not grow with depth
and a layer's queries are gone before the next starts. Each row of a batch runs the program it would run alone: its numbers, and
so every decision taken from them, are the same to the bit whatever stands beside it.
"""

from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from kvjax import evidence as ev
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.heap import reused, trim
from kvjax.cache.mesh import by_heads, mesh_of
from kvjax.checks import check_finite, check_prompts
from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk
from kvjax.prefill.placed import PlacedBlock
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.protocols import Decoder, LanguageModel
from kvjax.short_repr import short
from kvjax.types import Keys, Values
from kvjax.weights_mark import mark_of


@partial(jax.jit, static_argnames=("decoder", "window", "attention"), donate_argnames=("x", "k", "v", "evidence", "memory"))
def _layer(weights, x, k, v, evidence, memory, needs, ids, pos, prompt, offset, end, *, decoder, window, attention):
    """One layer over one chunk of a prompt; k and v are the layer's whole buffers, filled up to the chunk.

    The layer's tokens stand at `pos`, in a prompt of `prompt` tokens; those from `end` on are padding.
    """
    at = jax.lax.dynamic_slice_in_dim(pos, offset, x.shape[1], axis=1)
    count = jnp.clip(end - offset, 0, x.shape[1])

    def read_again(inputs: AttentionInputs, keys: Keys, values: Values):
        own_k, own_v = (jax.lax.dynamic_slice_in_dim(y, offset, inputs.k.shape[2], axis=2) for y in (keys, values))
        out, _, _ = attention.attend_after(
            memory, inputs.replace(k=own_k, v=own_v), keys, values, ids=ids, offset=offset, count=count, window=window,
            rope=decoder.rope,
        )  # fmt: skip
        return out

    def attend(inputs: AttentionInputs, after=None):
        if after is not None:  # another layer's queries over the keys and values just stored
            return read_again(inputs, *after[:2]), after
        keys = jax.lax.dynamic_update_slice_in_dim(k, inputs.k.astype(k.dtype), offset, axis=2)
        values = jax.lax.dynamic_update_slice_in_dim(v, inputs.v.astype(v.dtype), offset, axis=2)
        out, block, left = attention.recording(needs).attend_after(
            memory, inputs, keys, values, ids=ids, offset=offset, count=count, window=window, rope=decoder.rope
        )
        placed = PlacedBlock(block=block, pos=pos, prompt=prompt)
        return out, (keys, values, ev.observe(evidence, needs, placed), left)

    x, (k, v, evidence, memory) = decoder.layer(weights, x, at, attend)
    return x, k, v, evidence, memory


@partial(jax.jit, static_argnames="decoder")
def _embed(params, tokens, *, decoder):
    return decoder.embed(params, tokens)


@partial(jax.jit, static_argnames="decoder")
def _unembed(params, x, *, decoder):
    return decoder.unembed(params, x)


@partial(jax.jit, static_argnames="decoder")
def _last_logits(params, x, index, *, decoder):
    last = jax.lax.dynamic_slice_in_dim(x, index, 1, axis=1)
    return decoder.unembed(params, last)[0, 0]


def shape_of(decoder: Decoder, n: int, dtype: DTypeLike) -> ev.Shape:
    """Sizes of one prompt of bucket n."""
    return ev.Shape(b=1, h=decoder.heads, g=decoder.groups, n=n, d=decoder.head_dim, e=decoder.config.width, dtype=dtype)


def memories(attention: PrefillAttention, decoder: Decoder, n: int, dtype: DTypeLike) -> list:
    """What a prompt's attention has of each layer before the first chunk."""
    return [attention.begin(shape_of(decoder, n, dtype), layer) for layer in range(decoder.layers)]


@partial(jax.jit, static_argnames="decoder", donate_argnames=("found",))
def _of_output(params, x, found, needs, ids, offset, end, before, *, decoder):
    """What is recorded of the model's output after one more chunk of a prompt, and the logits after its last token."""
    count = jnp.clip(end - offset, 0, x.shape[1])
    unembed = partial(decoder.unembed, params)
    new, before = ev.of_output(needs, unembed, x, ids, before=before, offset=jnp.full_like(count, offset), count=count)
    put = partial(jax.lax.dynamic_update_slice_in_dim, start_index=offset, axis=1)
    return {key: put(old, new[key]) for key, old in found.items()}, before


class OutputRecord:
    """What is recorded of the model's output of one prompt of bucket n; nothing where nothing is asked for."""

    def __init__(self, lm: LanguageModel, n: int, needs: Iterable[ev.Need]):
        self.lm, self.needs = lm, ev.of_model(needs)
        self.found = {need.key: jnp.zeros((1, n), jnp.float32) for need in self.needs}
        self.before = jnp.zeros((1, lm.decoder.vocab), jnp.float32)

    def add(self, part: PrefillChunk, x: jax.Array, tokens: np.ndarray) -> None:
        """One more chunk, of which the last layer gave x."""
        if self.needs:
            ids, end = jnp.asarray(tokens[None, part.offset : part.offset + part.width]), jnp.asarray([part.end], jnp.int32)
            self.found, self.before = _of_output(
                self.lm.params, x, self.found, self.needs, ids, np.int32(part.offset), end, self.before, decoder=self.lm.decoder
            )

    def beside(self, evidence: ev.Evidence) -> ev.Evidence:
        """A layer's evidence with it."""
        return evidence.replace(data={**evidence.data, **self.found})


def layer_buffers(
    decoder: Decoder, n: int, dtype: DTypeLike, needs: Iterable[ev.Need], layer: int
) -> tuple[Keys, Values, ev.Evidence]:
    """Empty keys, values and evidence for one layer of one prompt of bucket n."""
    shape, size = (1, decoder.heads, n, decoder.head_dim), shape_of(decoder, n, dtype)
    found = ev.empty(ev.of_layer(needs, layer), size, decoder.rope, ev.reach(decoder.windows, layer))
    return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), found


def buffers(decoder: Decoder, n: int, dtype: DTypeLike, needs: Iterable[ev.Need]) -> tuple[list, list, list[ev.Evidence]]:
    """Empty keys, values and evidence for every layer of one prompt of bucket n."""
    layers = [layer_buffers(decoder, n, dtype, needs, layer) for layer in range(decoder.layers)]
    k, v, evidence = map(list, zip(*layers, strict=True))
    return k, v, jax.tree.map(jnp.copy, evidence)  # each a buffer of its own, since all of them are given away


def _run(
    lm: LanguageModel, chunk: PrefillChunk, tokens: np.ndarray, length: int, k: list, v: list, evidence: list, memory: list,
    needs: Iterable[ev.Need],
) -> jax.Array:  # fmt: skip
    """One chunk through every layer, in place: hidden states [1, t, e]."""
    pos, prompt = jnp.arange(len(tokens), dtype=jnp.int32)[None], jnp.asarray([length], jnp.int32)
    end = jnp.asarray([chunk.end], jnp.int32)
    ids = jnp.asarray(tokens[None, chunk.offset : chunk.offset + chunk.width])
    x = _embed(lm.params, ids, decoder=lm.decoder)
    for layer, (weights, window) in enumerate(zip(lm.params["layers"], lm.decoder.windows, strict=True)):
        x, k[layer], v[layer], evidence[layer], memory[layer] = _layer(
            weights, x, k[layer], v[layer], evidence[layer], memory[layer], ev.of_layer(needs, layer), ids, pos, prompt,
            np.int32(chunk.offset), end, decoder=lm.decoder, window=window, attention=chunk.attention,
        )  # fmt: skip
    return x


def _prefill_row(
    lm: LanguageModel, ids: list[int], *, needs: Iterable[ev.Need], attention: PrefillAttention, chunk: int | None, all_logits: bool
) -> PrefilledRow:
    decoder = lm.decoder
    n, chunks = attention.plan(len(ids), chunk)
    tokens = np.zeros(n, np.int32)
    tokens[: len(ids)] = ids
    dtype = lm.params["embed"]["weight"].dtype
    (k, v, evidence), memory = buffers(decoder, n, dtype, needs), memories(attention, decoder, n, dtype)
    k, v = by_heads((k, v), mesh_of(lm.params))
    logits, output = [], OutputRecord(lm, n, needs)
    for part in chunks:
        x = _run(lm, part, tokens, len(ids), k, v, evidence, memory, needs)
        output.add(part, x, tokens)
        if all_logits:
            logits.append(_unembed(lm.params, x, decoder=decoder)[0, : part.end - part.offset])
    last = _last_logits(lm.params, x, np.int32(len(ids) - 1 - part.offset), decoder=decoder)
    check_finite(last, "the logits of the prompt's last token")
    return PrefilledRow(
        ids=jnp.asarray(tokens),
        length=jnp.asarray([len(ids)], jnp.int32),
        k=tuple(k),
        v=tuple(v),
        evidence=tuple(map(output.beside, evidence)),
        logits=last,
        all_logits=jnp.pad(jnp.concatenate(logits), ((0, n - len(ids)), (0, 0))) if all_logits else None,
        made_by=jnp.asarray([mark_of(lm.params)]),
    )


def needs_of(needs: object) -> frozenset[ev.Need]:
    """A policy, a stage, a need, or several of them → the evidence they need. Raises TypeError for anything else."""
    if isinstance(needs, frozenset | set) and all(isinstance(x, ev.Need) for x in needs):
        return frozenset(needs)
    given = needs if isinstance(needs, Iterable) and not isinstance(needs, str) else (needs,)
    found = [{x} if isinstance(x, ev.Need) else getattr(x, "needs", None) for x in given]
    if not all(isinstance(x, frozenset | set) for x in found):
        raise TypeError(
            "expected a policy, a stage such as policy.score, a list of them, or a set of kvjax.evidence needs in needs=; got "
            f"{short(needs)}: kvjax.methods.snapkv() is a policy"
        )
    return ev.union(*found)


def resolve_needs(needs: object) -> frozenset[ev.Need]:
    """What `needs_of` takes → the evidence a prefill records, without that of a second pass."""
    return frozenset(need for need in needs_of(needs) if not need.second_pass)


def prefill(
    lm, prompts, *, needs: object = ev.STANDARD, attention: PrefillAttention = CausalAttention(), chunk: int | None = None,
    all_logits: bool = False,
) -> Prefilled:  # fmt: skip
    """Prompts through the model, dense keys and values kept: arguments and errors as in `kvjax.read.prefill`."""
    rows = check_prompts(prompts, lm.decoder)
    attention.check(lm.decoder, chunk)
    wanted = resolve_needs(needs)
    for need in wanted:
        need.check(lm.decoder)
    trim()
    with reused():
        read = tuple(_prefill_row(lm, ids, needs=wanted, attention=attention, chunk=chunk, all_logits=all_logits) for ids in rows)
    return Prefilled(rows=read, needs=ev.ordered(wanted), decoder=lm.decoder)
