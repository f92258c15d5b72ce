"""Decode: new tokens from a compressed cache, in one on-device loop, or one step at a time."""

import time
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.cache.kv_cache import KVCache
from kvjax.cache.sharded import ShardedCache
from kvjax.checks import check_key, check_key_rows, check_language_model, check_new_tokens, check_sampler, check_stop
from kvjax.decode import sharded
from kvjax.decode.decoded import Decoded, stop_ids, told
from kvjax.decode.first_run import first_run
from kvjax.decode.headroom import check_cache, make_room
from kvjax.decode.sample import Greedy
from kvjax.decode.step import Spec, step
from kvjax.decode.token_loop import choose_token, token_loop
from kvjax.policy import Policy
from kvjax.types import power_of_two


@partial(jax.jit, static_argnames=("width", "keep_logits"), donate_argnames=("cache",))
def _loop(spec: Spec, params, cache: KVCache, read, sampler, key, stop, limit, *, width: int, keep_logits: bool):
    """`token_loop` as a program that owns the cache."""
    return token_loop(spec, params, cache, read, sampler, key, stop, limit, width=width, keep_logits=keep_logits)


def _key_for(sampler: object, key: object) -> jax.Array:
    """The key given, or a key a row; a sampler that draws nothing does without."""
    check_sampler(sampler)
    if key is None and sampler.random:
        raise ValueError(f"{type(sampler).__name__} draws tokens at random: pass key=jax.random.key(seed)")
    if key is None:
        return jax.random.key(0)
    return check_key(key)


def _stops(lm, stop: object) -> jax.Array:
    """Stop ids as an array of a fixed size, so that their number does not recompile."""
    ids = check_stop(lm.stop_ids if stop is None else stop)
    if len(ids) > 8:
        raise ValueError(f"at most 8 stop tokens; got {len(ids)}")
    return jnp.asarray(ids + [-1] * (8 - len(ids)), jnp.int32)


def decode(
    lm, cache: KVCache | ShardedCache, policy: Policy, *, max_new_tokens: int = 64, return_logits: bool = False,
    sampler: object = Greedy(), key: object = None, stop: object = None, pool_budget: int | float | None = None,
) -> Decoded:  # fmt: skip
    """Generate from a compressed cache; the loop runs on the device, the pool is updated in place.

    Args:
        lm: the language model.   cache: from `compress`, `extend`, `shard` or an earlier `decode`; it stays valid.
        policy: the policy the cache was made with (what evicts while decoding, how slots are read).
        max_new_tokens: most tokens a row gets.
        return_logits: keep what each token was chosen from.
        sampler: Greedy() or Sample(temperature, top_k, top_p).   key: a jax PRNG key, or one a row [B], needed by Sample.
        stop: token ids that end a row (default: the model's own; () for none).
        pool_budget: a budget whose size class the pool gets at least, as in `compress`.

    Raises:
        TypeError, ValueError: a cache or policy that does not fit, a context overrun, sampling without a key.
    """
    check_language_model(lm)
    new = check_new_tokens(max_new_tokens)
    run = sharded.decode if isinstance(cache, ShardedCache) else _decode
    key, stops = _key_for(sampler, key), _stops(lm, stop)
    return run(lm, cache, policy, new, keep_logits=return_logits, sampler=sampler, key=key, stop=stops, pool_budget=pool_budget)


def _decode(
    lm, cache: KVCache, policy: Policy, new: int, *, keep_logits: bool, sampler: object, key: jax.Array, stop: jax.Array,
    pool_budget: int | float | None,
) -> Decoded:  # fmt: skip
    """`decode` on one device, its arguments resolved."""
    check_cache(lm, cache, policy, new)
    check_key_rows(key, len(cache.position))
    roomy, padded_slots = make_room(cache, policy, new, pool_budget=pool_budget)
    owned, read = jax.block_until_ready(roomy).split()
    fixed = Spec.of(lm.decoder, policy, padded_slots)
    run = partial(_loop, fixed, lm.params, width=power_of_two(new), keep_logits=keep_logits)
    if first_run(_loop, fixed, lm.params, owned, read, sampler, key, stop, power_of_two(new), keep_logits):
        # no step at all: whatever has to be compiled is, and the cache comes back as it was
        owned = run(owned, read, sampler, key, stop, np.int32(0)).cache.adopted(owned)
    began = time.perf_counter()
    end = run(owned, read, sampler, key, stop, np.int32(new))
    steps, cache = int(end.i), end.cache.adopted(roomy).joined(read)
    seconds = time.perf_counter() - began
    return Decoded(
        tokens=np.asarray(end.tokens)[:, :steps],
        lengths=np.asarray(end.lengths),
        logits=end.logits[:, :steps] if keep_logits else None,
        cache=cache,
        info=told(seconds, steps, cache),
        tokenizer=lm.tokenizer,
        stop=stop_ids(stop),
    )


@partial(jax.jit, donate_argnames=("cache",))
def _one(spec: Spec, params, cache: KVCache, read, sampler, key, i, running, last, stop):
    token = choose_token(cache.logits, running, last, sampler=sampler, key=key, i=i)
    new, _ = step(spec, params, cache.joined(read), token, running=running).split()
    return new, token, running & ~(token[:, None] == stop).any(-1)


def stream(
    lm, cache: KVCache, policy: Policy, *, max_new_tokens: int = 64, sampler: object = Greedy(),
    key: object = None, stop: object = None,
) -> Iterator[np.ndarray]:  # fmt: skip
    """As `decode`, one step at a time: yields the int32 [B] tokens of each step, as soon as they are there."""
    check_language_model(lm)
    new = check_new_tokens(max_new_tokens)
    check_cache(lm, cache, policy, new)
    key = _key_for(sampler, key)
    check_key_rows(key, len(cache.position))
    cache, padded_slots = make_room(cache, policy, new)
    spec, stops, rows = Spec.of(lm.decoder, policy, padded_slots), _stops(lm, stop), cache.position
    running, token = jax.device_put((np.ones(rows.shape, bool), np.zeros(rows.shape, np.int32)), rows.sharding)
    cache, read = cache.split()
    for i in range(max_new_tokens):
        new, token, running = _one(spec, lm.params, cache, read, sampler, key, np.int32(i), running, token, stops)
        cache = new.adopted(cache)
        yield np.asarray(token)
        if not running.any():
            return
