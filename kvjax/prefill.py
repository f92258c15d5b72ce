"""Prefill: a prompt through the model once, its keys, values and evidence kept as an immutable value.

Layers are run one after another by one jitted program each prompt-length bucket shares, so compile time does not grow with depth
and a layer's queries are gone before the next starts. Each row of a batch runs the program it would run alone: its numbers, and
so every decision taken from them, are the same to the bit whatever stands beside it.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax import evidence as ev
from kvjax.attend import Heads
from kvjax.blocks import Blocks, Exact, Run, anchored_attention, prompt_attention
from kvjax.checks import check_finite, check_prompts
from kvjax.heap import trim


@struct.dataclass
class PrefilledRow:
    """One prompt: dense keys and values of every layer, padded on the right to a bucket.

    Attributes:
        ids: int32 [n], the prompt, padded with zeros.
        length: int32 [1], its true length.
        k, v: one [1, h, n, d] array a layer.
        evidence: what each layer recorded.
        logits: float32 [v] after the last token. all_logits: float32 [n, v] if asked for.
    """

    ids: Int32[Array, " n"]
    length: Int32[Array, "1"]
    k: tuple
    v: tuple
    evidence: tuple
    logits: Float32[Array, " v"]
    all_logits: Any = None


@struct.dataclass
class Prefilled:
    """Prompts after prefill: compress it with any number of policies; nothing changes it."""

    rows: tuple[PrefilledRow, ...]
    decoder: Any = struct.field(pytree_node=False)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each prompt."""
        return [int(np.asarray(row.length)[0]) for row in self.rows]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays held."""
        return sum(x.nbytes for x in jax.tree.leaves(self))

    @property
    def needs(self) -> frozenset:
        """The evidence recorded."""
        return self.rows[0].evidence[0].needs


@partial(jax.jit, static_argnames=("decoder", "window", "anchor"), donate_argnames=("x", "k", "v", "seen"))
def _layer(weights, x, k, v, seen, offset, end, *, decoder, window, anchor):
    """One layer over one run of a prompt; k and v are the layer's whole buffers, filled up to the run."""
    at = offset + jnp.arange(x.shape[1], dtype=jnp.int32)[None]
    count = jnp.clip(end - offset, 0, x.shape[1])

    def attend(heads: Heads):
        keys = jax.lax.dynamic_update_slice_in_dim(k, heads.k.astype(k.dtype), offset, axis=2)
        values = jax.lax.dynamic_update_slice_in_dim(v, heads.v.astype(v.dtype), offset, axis=2)
        if anchor is None:
            out, block = prompt_attention(heads, keys, values, offset, count, window)
        else:
            out, block = anchored_attention(heads, keys, values, offset, count, anchor)
        return out, (keys, values, ev.observe(seen, block))

    x, (k, v, seen) = decoder.layer(weights, x, at, attend)
    return x, k, v, seen


_embed = jax.jit(lambda params, tokens, *, decoder: decoder.embed(params, tokens), static_argnames="decoder")
_unembed = jax.jit(lambda params, x, *, decoder: decoder.unembed(params, x), static_argnames="decoder")


@partial(jax.jit, static_argnames=("decoder",))
def _last_logits(params, x, index, *, decoder):
    last = jax.lax.dynamic_slice_in_dim(x, index, 1, axis=1)
    return decoder.unembed(params, last)[0, 0]


def buffers(decoder, n: int, dtype, needs: frozenset):
    """Empty keys, values and evidence for every layer of one prompt of bucket n."""
    shape = (1, decoder.heads, n, decoder.head_dim)
    size = ev.Shape(
        b=1, h=decoder.heads, g=decoder.groups, n=n, d=decoder.head_dim, e=decoder.config.width, dtype=dtype
    )
    layers = range(decoder.layers)
    kv = [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for _ in layers]
    return kv, [ev.empty(needs, size, decoder.rope) for _ in layers]


def _run(lm, run: Run, tokens: np.ndarray, kv: list, seen: list):
    """One run through every layer, in place: hidden states [1, t, e]."""
    end = jnp.asarray([run.end], jnp.int32)
    x = _embed(lm.params, jnp.asarray(tokens[None, run.offset : run.offset + run.width]), decoder=lm.decoder)
    for layer, (weights, window) in enumerate(zip(lm.params["layers"], lm.decoder.windows, strict=True)):
        how = dict(decoder=lm.decoder, window=window, anchor=run.anchor)
        x, *kv[layer], seen[layer] = _layer(weights, x, *kv[layer], seen[layer], np.int32(run.offset), end, **how)
    return x


def _prefill_row(
    lm, ids: list[int], *, needs: frozenset, attention: Any, chunk: int | None, all_logits: bool
) -> PrefilledRow:
    decoder = lm.decoder
    n, runs = attention.plan(len(ids), chunk)
    tokens = np.zeros(n, np.int32)
    tokens[: len(ids)] = ids
    kv, seen = buffers(decoder, n, lm.params["embed"]["weight"].dtype, needs)
    kv, logits = [list(pair) for pair in kv], []
    for run in runs:
        x = _run(lm, run, tokens, kv, seen)
        if all_logits:
            logits.append(_unembed(lm.params, x, decoder=decoder)[0, : run.end - run.offset])
    last = _last_logits(lm.params, x, np.int32(len(ids) - 1 - run.offset), decoder=decoder)
    check_finite(last, "the logits of the prompt's last token")
    return PrefilledRow(
        ids=jnp.asarray(tokens),
        length=jnp.asarray([len(ids)], jnp.int32),
        k=tuple(k for k, _ in kv),
        v=tuple(v for _, v in kv),
        evidence=tuple(seen),
        logits=last,
        all_logits=jnp.pad(jnp.concatenate(logits), ((0, n - len(ids)), (0, 0))) if all_logits else None,
    )


def resolve_needs(needs: Any) -> frozenset:
    """A policy, several policies, or a set of evidence → the evidence to record."""
    if hasattr(needs, "needs"):
        return needs.needs
    if isinstance(needs, frozenset | set):
        return frozenset(needs)
    return ev.union(*(policy.needs for policy in needs))


def prefill(
    lm, prompts, *, needs: Any = ev.STANDARD, attention: Exact | Blocks = Exact(), chunk: int | None = None,
    all_logits: bool = False,
) -> Prefilled:  # fmt: skip
    """Run prompts through the model and keep what any policy may ask for.

    Attention is causal, computed tile by tile: memory is linear in the length. Prompts are padded to one of 8 buckets a power of
    two.

    Args:
        lm: a language model (`models.load`).
        prompts: token ids, or a list of them; rows may differ in length.
        needs: what to record: a policy, a list of policies, or a set of `kvjax.evidence` needs. The default serves every method in
            `kvjax.methods`; naming the policies you will use saves the second pass of those that read attention sums.
        attention: Exact(), or Blocks(size, anchor, tail) for an approximation that is linear in the length.
        chunk: tokens run through the layers at a time (a multiple of 64), which bounds activation memory. By default prompts of
            up to 2,048 tokens are run whole, longer ones 1,024 at a time.
        all_logits: keep the logits of every position (n·v floats a row, zeros behind the prompt).

    Raises:
        ValueError: an empty prompt, ids outside the vocabulary, a prompt longer than the model's context, a chunk or an attention
            that does not fit.
        FloatingPointError: the model produced NaN or infinite logits.
    """
    rows = check_prompts(prompts, lm.decoder)
    attention.check(lm.decoder, chunk)
    wanted = resolve_needs(needs)
    trim()
    return Prefilled(
        rows=tuple(_prefill_row(lm, ids, needs=wanted, attention=attention, chunk=chunk, all_logits=all_logits) for ids in rows),
        decoder=lm.decoder,
    )
