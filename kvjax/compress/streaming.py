"""Prompts compressed as they are read: a layer is cut as soon as all of the prompt has been through it.

Layer by layer, every chunk of every prompt is run through the layer; then its slots are scored, cut, merged and encoded, what stays
is copied into the cache's pools, and the layer's dense keys and values are let go. At most one layer of them is alive beside what
is kept and the residual stream, [n, e] a prompt, which may wait on the host. The cache is that of `compress(prefill(...), policy)`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from kvjax import evidence as ev
from kvjax.budget import check_budget
from kvjax.cache.heap import reused, trim
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layers import Layers
from kvjax.cache.layout import plan_regions
from kvjax.checks import check_prompts
from kvjax.compress.decision import Decision
from kvjax.compress.run import decide, is_numbered, packed
from kvjax.compress.score_prompt import scores_of
from kvjax.policy import Policy
from kvjax.prefill.attention import CausalAttention, PrefillAttention
from kvjax.prefill.by_layer import Reading, begun, through, without
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.protocols import Decoder, LanguageModel


def compressed_prefill(
    lm, prompts, policy: Policy, *, attention: PrefillAttention = CausalAttention(), chunk: int | None = None,
    residual_on_host: bool = False,
) -> KVCache:  # fmt: skip
    """`compress(prefill(lm, prompts, needs=policy), policy)` without ever holding more than one layer of dense keys and values.

    Args as in `kvjax.prefill`.

    Raises:
        TypeError, ValueError: as `prefill` and `compress`, and for a policy that looks at all layers, or at the prompt, at once.
    """
    rows = check_prompts(prompts, lm.decoder)
    attention.check(lm.decoder, chunk)
    check_streaming(lm.decoder, rows, policy)
    check_leaving(lm.decoder, policy, attention)
    needs = ev.ordered(policy.needs)
    trim()
    memory = jax.memory.Space.Host if residual_on_host else jax.memory.Space.Device
    readings = [begun(lm, ids, attention, chunk, memory) for ids in rows]
    layers, decided = Layers(asked_slots(lm.decoder, rows, policy)), []
    with reused():
        for layer in range(lm.decoder.layers):
            decided.append(_layer(lm, readings, layer, needs, policy, layers))
    cache = layers.joined()
    per_row = [_together([of_layer[r] for of_layer in decided]) for r in range(len(rows))]
    return cache.replace(retrieval=policy.retrieve.build(_bare(lm, readings), per_row, cache, policy.encode))


def _layer(
    lm: LanguageModel, readings: list[Reading], layer: int, needs: Sequence[ev.Need], policy: Policy, layers: Layers
) -> list[Decision]:
    """One layer of all prompts into the cache; what was decided for each. Its dense keys and values end with this call."""
    rows = tuple(through(lm, reading, layer, needs) for reading in readings)
    pre = Prefilled(rows=rows, needs=tuple(needs), decoder=lm.decoder, first=layer)
    decided = decide(pre, policy, scores_of(pre, policy))
    layers.add(packed(pre, policy, decided, headroom=0, reserve_slots=0, numbered=is_numbered(pre, policy)))
    if policy.select.leaves:
        readings[:] = [_left(reading, d) for reading, d in zip(readings, decided, strict=True)]
    return [d.replace(scores=d.scores[..., :0], keep=d.keep[..., :0], state=()) for d in decided]


def _left(reading: Reading, decision: Decision) -> Reading:
    """A prompt without the tokens that no head of the layer keeps."""
    stay = np.flatnonzero(np.asarray(decision.keep)[0, 0].any(0))
    return reading if len(stay) == reading.held else without(reading, stay)


def _together(decided: Sequence[Decision]) -> Decision:
    """What was decided for one prompt, all layers: budgets and counts, without the scores."""
    fields = {name: jnp.concatenate([getattr(d, name) for d in decided]) for name in ("scores", "keep", "count", "budget")}
    return decided[0].replace(**fields)


def _bare(lm: LanguageModel, readings: Sequence[Reading]) -> list[PrefilledRow]:
    """The prompts without keys and values, for retrievers that read only their lengths."""
    none = jnp.zeros(lm.decoder.vocab, jnp.float32)
    return [
        PrefilledRow(ids=jnp.asarray(r.tokens), length=jnp.asarray([r.length], jnp.int32), k=(), v=(), evidence=(), logits=none)
        for r in readings
    ]


def asked_slots(decoder: Decoder, rows: Sequence[Sequence[int]], policy: Policy) -> int:
    """Slots of the pool that holds just what the budget asks for."""
    asked = [policy.mean_budget(len(ids)) if policy.when.after_prefill else len(ids) for ids in rows]
    return plan_regions(np.broadcast_to(np.array(asked)[:, None], (decoder.layers, len(rows), decoder.heads)))[2]


def check_streaming(decoder: Decoder, rows: Sequence[Sequence[int]], policy: Policy) -> None:
    """Raise TypeError or ValueError, before anything is traced, for a policy that cannot go layer by layer."""
    if not isinstance(policy, Policy):
        raise TypeError(f"streaming= wants a kvjax policy such as kvjax.methods.snapkv(budget=256); got {policy!r}")
    check_budget(policy.budget)
    for ids in rows:
        policy.check(decoder, len(ids))
    whole = "run kvjax.compress(kvjax.prefill(lm, ids), policy)"
    if not policy.allocate.by_layer:
        raise ValueError(
            f"{type(policy.allocate).__name__} needs the scores of all layers before it gives slots to any: {whole}, or take an "
            "allocator that goes layer by layer, such as Uniform or Adaptive"
        )
    if any(need.second_pass for need in policy.needs):
        raise ValueError(f"{type(policy.score).__name__} reads a second pass over all layers: {whole} after kvjax.second_pass")
    if any(need.whole_model for need in policy.needs):
        raise ValueError(f"{type(policy.score).__name__} reads the model's output, which is there after the last layer: {whole}")
    if policy.retrieve.reads_prompt:
        raise ValueError(f"{type(policy.retrieve).__name__} keeps all of the prompt's keys: {whole}")
    if policy.encode.parted:
        raise ValueError(f"{type(policy.encode).__name__} holds slots in parts, which layer by layer it does not: {whole}")
    if policy.encode.page > 1:
        raise ValueError(f"{policy.encode!r} codes {policy.encode.page} slots at once, which layer by layer it does not: {whole}")


def check_leaving(decoder: Decoder, policy: Policy, attention: PrefillAttention) -> None:
    """Raise ValueError where tokens leave a prompt whose order in the text is not all that is read of it."""
    if not policy.select.leaves:
        return
    name = type(policy.select).__name__
    if any(window is not None for window in decoder.windows):
        raise ValueError(
            f"{name} lets tokens leave the prompt: it needs full attention, this model has layers with a sliding window"
        )
    if not isinstance(attention, CausalAttention):
        raise ValueError(f"{name} lets tokens leave the prompt: prefill with CausalAttention(), not with {attention}")
    if policy.encode.positions.turns:
        raise ValueError(
            f"{name} lets tokens leave the prompt: their keys cannot be turned, use other positions than {policy.encode}"
        )
