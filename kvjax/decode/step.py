"""One decode step: tokens through the model over the packed pool, appended, then evicted if the policy says so.

`(params, cache, tokens) -> (cache, logits)`, pure and traceable; callers jit it with the cache donated, so that the pool is updated
in place. Layers are unrolled over a list of weights: on a CPU slicing stacked weights costs a copy of them every step.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.kv_cache import KVCache
from kvjax.decode.evict import LayerStep, Reader, evict, settle
from kvjax.encoder import Encoder
from kvjax.evidence import of_model, of_output
from kvjax.kernels.append import append
from kvjax.policy import DecodeStages, Policy
from kvjax.protocols import Decoder
from kvjax.slot_positions import rows_for
from kvjax.stage import Retriever


@struct.dataclass
class Spec:
    """What a decode program is compiled for, beside shapes.

    Attributes:
        decoder: the model's layers, without weights.
        retrieve, encode: the policy's retriever and encoder.
        stages: the stages that evict while decoding, None if nothing does.
        padded_slots: slots a region is padded to where something needs a static bound (a power of two at least the widest), else 0.
    """

    decoder: Decoder = struct.field(pytree_node=False)
    retrieve: Retriever
    encode: Encoder
    stages: DecodeStages | None
    padded_slots: int = struct.field(pytree_node=False, default=0)

    @classmethod
    def of(cls, decoder: Decoder, policy: Policy, padded_slots: int) -> "Spec":
        """What decoding under a policy is compiled for."""
        return cls(
            decoder=decoder,
            retrieve=policy.retrieve,
            encode=policy.encode,
            stages=policy.decode_stages(),
            padded_slots=padded_slots,
        )


def _of_layers(x: Array, layers: int) -> Array:
    """[b ...] repeated for every layer, layers and rows as one axis."""
    return jnp.broadcast_to(x, (layers, *x.shape)).reshape(layers * x.shape[0], *x.shape[1:])


def _slots_of_parts(cache: KVCache, encode: Encoder, positions: Int32[Array, "b t"], count: Int32[Array, " b"]) -> KVCache:
    """`_slots` in the parts that take new tokens."""
    if not cache.parts:
        return _slots(cache, positions, count)
    parts = [_slots(x, positions, count) if encode.takes(i) else x for i, x in enumerate(cache.parts)]
    return cache.replace(length=cache.length + count[:, None], parts=tuple(parts))


def _slots(cache: KVCache, positions: Int32[Array, "b t"], count: Int32[Array, " b"]) -> KVCache:
    """Slots for a step's tokens behind the last of every region: their positions, and a state of zeros. Of all layers at once."""
    (layers, b, h), t = cache.start.shape, positions.shape[1]
    state = jax.tree.map(lambda x: jnp.zeros((layers * b, h, t, *x.shape[1:]), x.dtype), cache.state)
    pos = rows_for(cache.pos, _of_layers(jnp.broadcast_to(positions[:, None], (b, h, t)), layers))
    rows = {"pos": pos, "state": state}
    regions = cache.start.reshape(-1, h), cache.length.reshape(-1, h)
    pools = append({"pos": cache.pos, "state": cache.state}, rows, *regions, _of_layers(count, layers))
    return cache.replace(length=cache.length + count[:, None], **pools)


def _queries_ahead(spec: Spec, layers: list, layer: int, positions: Int32[Array, "b t"]) -> Callable[[Array], Array] | None:
    """`AttendContext.queries_ahead` of a layer. The next one is traced for it, and all but its queries dropped by the compiler."""
    if layer + 1 >= len(layers):
        return None

    def queries_of(x: Array) -> Array:
        found = []

        def attend(inputs: AttentionInputs, after: PyTree = None):
            found.append(inputs.queries_of(x))
            return jnp.zeros_like(inputs.q), after

        spec.decoder.layer(layers[layer + 1], x, positions, attend)
        return found[0]

    return queries_of


def _attend(inputs: AttentionInputs, after=None, *, spec: Spec, cache: KVCache, layer: int, tokens, positions, count, ahead=None):
    """Append, then attend over everything: the seam of one layer. Gives back what it leaves to scorers if slots will be evicted.

    With `after`, what was given back last, another layer's queries read what has been appended: nothing is written.
    """
    context = AttendContext(
        layer=layer, positions=positions, window=spec.decoder.windows[layer], padded_slots=spec.padded_slots,
        encode=spec.encode.at(layer), rope=spec.decoder.rope, queries_ahead=ahead, count=count,
    )  # fmt: skip
    placed = context.encode.positions.inputs(inputs, positions, spec.decoder.rope)
    if after is not None:
        out, _, read = spec.retrieve.at(layer).attend(placed, after[0], context)
        (out, _), read = _after_reading((out, None), read)
        return out, (read, after[1])
    cache, retrieve = context.encode.append(cache, placed, context, count), spec.retrieve.at(layer)
    out, lse, cache = retrieve.attend(placed, cache, context)
    left = None
    if spec.stages is not None:
        needs = spec.stages.score.at(layer).needs
        left = LayerStep.of(
            cache.evidence[layer], retrieve.asked(inputs), out, lse, needs=needs, query=context.encode.positions.query, ids=tokens,
            offset=cache.position, count=count,
        )  # fmt: skip
    (out, left), cache = _after_reading((out, left), cache)
    return out, (cache, left)


def _after_reading(read: PyTree, cache: KVCache) -> tuple[PyTree, KVCache]:
    """The same, with every later write to the pool after what was read from it: without an order XLA copies the pool first."""
    written = cache.k, cache.v, cache.pos, cache.tails, cache.parts
    read, passed, (k, v, pos, tails, parts) = lax.optimization_barrier((read, cache.passed, written))
    return read, cache.replace(k=k, v=v, pos=pos, tails=tails, parts=parts, passed=passed)


def _of_output(spec: Spec, params, cache: KVCache, x, tokens, count) -> dict[str, Array]:
    """What the scorer reads of the model's output for the tokens of a step; nothing is computed where that is nothing."""
    needs = () if spec.stages is None else of_model(spec.stages.score.needs)
    if not needs:
        return {}
    unembed = partial(spec.decoder.unembed, params)
    return of_output(needs, unembed, x, tokens, before=cache.logits, offset=cache.position, count=count)[0]


def _evict(
    spec: Spec, cache: KVCache, left: list[LayerStep | None], *, tokens, count: Int32[Array, " b"], dtype: DTypeLike,
    output: dict[str, Array],
) -> KVCache:  # fmt: skip
    """Evict, if the policy says so; only the carried part of the evidence stays in the cache."""
    if spec.stages is None:
        return cache
    reader = Reader(
        stages=spec.stages, encode=spec.encode, dtype=dtype, windows=spec.decoder.windows, padded_slots=spec.padded_slots,
        rope=spec.decoder.rope, ids=tokens, offset=cache.position, count=count, output=output,
    )  # fmt: skip
    cache = settle(reader, cache, left) if cache.parts else evict(reader, cache, left)
    return cache.replace(evidence=tuple(x.evidence for x in left))


def run_tokens(spec: Spec, params, cache: KVCache, tokens: Int32[Array, "b t"], count: Int32[Array, " b"]):
    """Tokens through every layer; row b holds count[b] real ones. Returns (cache, hidden states [b, t, e])."""
    positions = cache.position[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)
    spec.retrieve.check_cache(cache)
    cache = _slots_of_parts(cache, spec.encode, positions, count)
    x, left = spec.decoder.embed(params, tokens), []
    for layer, weights in enumerate(params["layers"]):
        ahead = _queries_ahead(spec, params["layers"], layer, positions)
        how = dict(spec=spec, cache=cache, layer=layer, tokens=tokens, positions=positions, count=count, ahead=ahead)
        attend = partial(_attend, **how)
        x, (cache, of_layer) = spec.decoder.layer(weights, x, positions, attend)
        left.append(of_layer)
    output = _of_output(spec, params, cache, x, tokens, count)
    cache = _evict(spec, cache, left, tokens=tokens, count=count, dtype=x.dtype, output=output)
    cache = spec.encode.flush(spec.retrieve.end(cache, spec.encode, count=count)).replace(passed=())
    return cache.replace(position=cache.position + count, steps=cache.steps + count), x


def step(spec: Spec, params, cache: KVCache, token: Int32[Array, " b"], *, running: Bool[Array, " b"]) -> KVCache:
    """One token a row; rows not running keep their cache and logits."""
    cache, x = run_tokens(spec, params, cache, token[:, None], running.astype(jnp.int32))
    logits = spec.decoder.unembed(params, x)[:, 0]
    return cache.replace(logits=jnp.where(running[:, None], logits, cache.logits))


def run_block(spec: Spec, params, cache: KVCache, tokens: Int32[Array, "b t"], count: Int32[Array, " b"], *, keep_logits: bool):
    """Known tokens, count[b] of row b, into the cache: (cache, the logits after each of them, or None)."""
    cache, x = run_tokens(spec, params, cache, tokens, count)

    def last(x):
        return jnp.take_along_axis(x, jnp.maximum(count - 1, 0)[:, None, None], 1)

    every = spec.decoder.unembed(params, x) if keep_logits else None
    logits = last(every) if keep_logits else spec.decoder.unembed(params, last(x))
    return cache.replace(logits=jnp.where((count > 0)[:, None], logits[:, 0], cache.logits)), every
