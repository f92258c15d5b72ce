"""One decode step: tokens through the model over the packed pool, appended, then evicted if the policy says so.

`(params, cache, tokens) -> (cache, logits)`, pure and traceable; callers jit it with the cache donated, so that the pool is updated
in place. Layers are unrolled over a list of weights: on a CPU slicing stacked weights costs a copy of them every step.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from kvjax import evidence as ev
from kvjax.attend import Heads
from kvjax.cache import KVCache
from kvjax.evict import evict
from kvjax.kernels.append import append, behind
from kvjax.kernels.ragged_attention import probabilities
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


@struct.dataclass
class StepBlock:
    """The tokens of one step as evidence sees them."""

    heads: Heads
    cache: KVCache
    encode: Any
    lse: Any
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]
    layer: int = struct.field(pytree_node=False)
    cap: int = struct.field(pytree_node=False)
    window: int | None = struct.field(pytree_node=False)

    def column_sums(self) -> Float32[Array, "b h g n"]:
        t = jnp.arange(self.heads.q.shape[3], dtype=jnp.int32)
        how = dict(positions=self.offset[:, None] + t, window=self.window, cap=self.cap)
        p = probabilities(self.encode.scores(self.heads.q, self.cache, self.layer, **how), self.lse)
        real = (t < self.count[:, None])[:, None, None, :, None]
        return jnp.where(real, p, 0.0).sum(3)


def _append(cache: KVCache, layer: int, encode, *, heads: Heads, positions, count: Int32[Array, " b"]) -> KVCache:
    """New keys as `encode` stores them, values and positions behind each region's last slot, with statistics of zero."""
    (b, h, t, d), start, length = heads.k.shape, cache.start[layer], cache.length[layer]
    rows = dict(
        k=encode.encode(heads.k),
        pos=jnp.broadcast_to(positions[:, None], (b, h, t)),
        stats={name: jnp.zeros((b, h, t)) for name in cache.stats},
    )
    pools = append({name: getattr(cache, name) for name in rows}, rows, start, length, count)
    where = behind(start, length, count, t=t, slots=cache.slots).reshape(-1)
    v = encode.values.append(cache.v, where, heads.v.reshape(-1, d))
    return cache.replace(v=v, length=cache.length.at[layer].add(count[:, None]), **pools)


def _attend(heads: Heads, *, spec: Spec, cache: KVCache, layer: int, positions, real, count):
    """Append, then attend over everything: the seam of one layer. Gives back the evidence, too, if slots will be evicted."""
    window, encode, retrieve = spec.decoder.windows[layer], spec.encode.at(layer), spec.retrieve.at(layer)
    cache = _append(cache, layer, encode, heads=heads, positions=positions, count=count)
    out, lse, cache = retrieve.attend(heads, cache, layer, positions=positions, window=window, encode=encode, cap=spec.cap)
    cache = retrieve.observe(cache, layer, heads, real=real, lse=lse)
    seen = None
    if spec.policy is not None:
        block = StepBlock(
            heads=heads, cache=cache, encode=encode, lse=lse, offset=positions[:, 0], count=count, layer=layer, cap=spec.cap,
            window=window,
        )  # fmt: skip
        seen = _fold(spec.policy, cache.evidence[layer], block)
    (out, seen), cache = _after_reading((out, seen), cache)
    return out, (cache, seen)


def _after_reading(read, cache: KVCache):
    """The same, with every later write to the pool after what was read from it: without an order XLA copies the pool first."""
    read, k, v, pos = lax.optimization_barrier((read, cache.k, cache.v, cache.pos))
    return read, cache.replace(k=k, v=v, pos=pos)


def _fold(policy: Policy, old: ev.Evidence, block: StepBlock) -> ev.Evidence:
    """A layer's evidence after the step; what is not carried is of the step alone."""
    carried = ev.observe(old, block)
    return carried.replace(data={**carried.data, **{n.key: n.now(block) for n in policy.score.needs if not n.carried}})


def _evict(spec: Spec, cache: KVCache, seen: list, *, count: Int32[Array, " b"], dtype: Any) -> KVCache:
    """Evict, if the policy says so; only the carried part of the evidence stays in the cache."""
    if spec.policy is None:
        return cache
    cache = evict(spec.policy, cache, seen=seen, cap=spec.cap, count=count, encode=spec.encode, dtype=dtype)
    return cache.replace(evidence=tuple(ev.restrict(x, x.needs) for x in seen))


def run_tokens(spec: Spec, params, cache: KVCache, tokens: Int32[Array, "b t"], count: Int32[Array, " b"]):
    """Tokens through every layer; row b holds count[b] real ones. Returns (cache, hidden states [b, t, e])."""
    t = jnp.arange(tokens.shape[1], dtype=jnp.int32)
    positions, real = cache.position[:, None] + t, t < count[:, None]
    x, cache, seen = spec.decoder.embed(params, tokens), spec.retrieve.begin(cache), []
    for layer, weights in enumerate(params["layers"]):
        attend = partial(
            _attend, spec=spec, cache=cache, layer=layer, positions=positions, real=real, count=count
        )  # fmt: skip
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
