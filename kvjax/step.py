"""One decode step: tokens through the model over the packed pool, appended, then evicted if the policy says so.

`(params, cache, tokens) -> (cache, logits)`, pure and traceable; callers jit it with the cache donated, so that the pool is updated
in place. Layers are unrolled over a list of weights: on a CPU slicing stacked weights costs a copy of them every step.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int32

from kvjax.attend import Heads
from kvjax.cache import KVCache
from kvjax.evict import Reader, Seen, evict
from kvjax.kernels.append import append, behind
from kvjax.policy import Policy


@struct.dataclass
class Spec:
    """What a decode program is compiled for, beside shapes.

    Attributes:
        decoder: the model's layers, without weights.
        retrieve, encode: the policy's retriever and encoder.
        policy: the whole policy if it evicts while decoding, else None.
        cap: slots a region is padded to where something needs a static bound (a power of two at least the widest), else 0.
    """

    decoder: Any = struct.field(pytree_node=False)
    retrieve: Any
    encode: Any
    policy: Policy | None
    cap: int = struct.field(pytree_node=False, default=0)

    @classmethod
    def of(cls, decoder: Any, policy: Policy, cap: int) -> "Spec":
        """What decoding under a policy is compiled for."""
        return cls(decoder=decoder, retrieve=policy.retrieve, encode=policy.encode, policy=policy.decoding(), cap=cap)


def _slots(cache: KVCache, positions: Int32[Array, "b t"], count: Int32[Array, " b"]) -> KVCache:
    """Slots for a step's tokens behind the last of every region: their positions, and statistics of zero. Of all layers at once."""
    (layers, b, h), t = cache.start.shape, positions.shape[1]
    rows = dict(pos=jnp.broadcast_to(positions[:, None], (b, h, t)), stats={name: jnp.zeros((b, h, t)) for name in cache.stats})
    every = lambda x: jnp.broadcast_to(x, (layers, *x.shape)).reshape(layers * b, *x.shape[1:])  # noqa: E731
    regions = cache.start.reshape(-1, h), cache.length.reshape(-1, h)
    pools = append(dict(pos=cache.pos, stats=cache.stats), jax.tree.map(every, rows), *regions, every(count))
    return cache.replace(length=cache.length + count[:, None], **pools)


def _fill(cache: KVCache, layer: int, encode, *, heads: Heads, count: Int32[Array, " b"]) -> KVCache:
    """A layer's new keys as `encode` stores them, and its new values, in the slots made for them."""
    start, before = cache.start[layer], cache.length[layer] - count[:, None]
    k = append(cache.k, encode.encode(heads.k), start, before, count)
    t, d = heads.k.shape[2:]
    where = behind(start, before, count, t=t, slots=cache.slots).reshape(-1)
    return cache.replace(k=k, v=encode.values.append(cache.v, where, heads.v.reshape(-1, d)))


def _attend(heads: Heads, *, spec: Spec, cache: KVCache, layer: int, positions, count):
    """Append, then attend over everything: the seam of one layer. Gives back what it leaves to scorers if slots will be evicted."""
    window, encode, retrieve = spec.decoder.windows[layer], spec.encode.at(layer), spec.retrieve.at(layer)
    cache = _fill(cache, layer, encode, heads=heads, count=count)
    out, lse, cache = retrieve.attend(heads, cache, layer, positions=positions, window=window, encode=encode, cap=spec.cap)
    seen = None
    if spec.policy is not None:
        seen = Seen.of(cache.evidence[layer], heads, lse, needs=spec.policy.score.needs, offset=cache.position, count=count)
    (out, seen), cache = _after_reading((out, seen), cache)
    return out, (cache, seen)


def _after_reading(read, cache: KVCache):
    """The same, with every later write to the pool after what was read from it: without an order XLA copies the pool first."""
    read, k, v, pos = lax.optimization_barrier((read, cache.k, cache.v, cache.pos))
    return read, cache.replace(k=k, v=v, pos=pos)


def _evict(spec: Spec, cache: KVCache, seen: list, *, count: Int32[Array, " b"], dtype: Any) -> KVCache:
    """Evict, if the policy says so; only the carried part of the evidence stays in the cache."""
    if spec.policy is None:
        return cache
    how = dict(policy=spec.policy, encode=spec.encode, dtype=dtype, windows=spec.decoder.windows, cap=spec.cap)
    cache = evict(Reader(**how, offset=cache.position, count=count), cache, seen)
    return cache.replace(evidence=tuple(x.evidence for x in seen))


def run_tokens(spec: Spec, params, cache: KVCache, tokens: Int32[Array, "b t"], count: Int32[Array, " b"]):
    """Tokens through every layer; row b holds count[b] real ones. Returns (cache, hidden states [b, t, e])."""
    positions = cache.position[:, None] + jnp.arange(tokens.shape[1], dtype=jnp.int32)
    x, cache, seen = spec.decoder.embed(params, tokens), _slots(spec.retrieve.begin(cache), positions, count), []
    for layer, weights in enumerate(params["layers"]):
        attend = partial(_attend, spec=spec, cache=cache, layer=layer, positions=positions, count=count)
        x, (cache, evidence) = spec.decoder.layer(weights, x, positions, attend)
        seen.append(evidence)
    cache = _evict(spec, cache, seen, count=count, dtype=x.dtype)
    cache = spec.retrieve.end(cache, spec.encode, count=count)
    return cache.replace(position=cache.position + count, steps=cache.steps + count), x


def step(spec: Spec, params, cache: KVCache, token: Int32[Array, " b"], *, running: Bool[Array, " b"]) -> KVCache:
    """One token a row; rows not running keep their cache and logits."""
    cache, x = run_tokens(spec, params, cache, token[:, None], running.astype(jnp.int32))
    logits = spec.decoder.unembed(params, x)[:, 0]
    return cache.replace(logits=jnp.where(running[:, None], logits, cache.logits))
