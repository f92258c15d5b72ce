"""The loop of decoding on the device: choose a token a row, run it, until rows stop or there are enough."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.decode.step import Spec, step
from kvjax.types import Number


@struct.dataclass
class Loop:
    """State of the on-device loop."""

    cache: KVCache
    tokens: object
    logits: PyTree
    lengths: PyTree
    running: PyTree
    i: Number


def choose_token(state_logits, running, last, *, sampler, key, i):
    """The token of each row; a row that has stopped repeats its last."""
    folded = jax.vmap(jax.random.fold_in, (0, None))(key, i) if key.ndim else jax.random.fold_in(key, i)
    token = sampler(state_logits, folded)
    return jnp.where(running, token, last)


def token_loop(
    spec: Spec, params, cache: KVCache, read, sampler, key, stop, limit, *, width: int, keep_logits: bool,
    anyone: Callable[[Bool[Array, " b"]], Bool[Array, ""]] = jnp.any,
) -> Loop:  # fmt: skip
    """Up to `limit` tokens a row; the cache is `split`; `width` is the size of the output buffer.

    `anyone` says of the rows that run here whether the loop goes on.
    """
    rows = cache.position.shape[0]
    seen = jnp.zeros((rows, width, cache.logits.shape[1]) if keep_logits else (rows, 0, 1), jnp.float32)

    def body(s: Loop) -> Loop:
        last = s.tokens[:, jnp.maximum(s.i - 1, 0)]
        token = choose_token(s.cache.logits, s.running, last, sampler=sampler, key=key, i=s.i)
        logits = s.logits.at[:, s.i].set(s.cache.logits) if keep_logits else s.logits
        new = step(spec, params, s.cache.joined(read), token, running=s.running)
        return Loop(
            cache=new.split()[0],
            tokens=s.tokens.at[:, s.i].set(token),
            logits=logits,
            lengths=s.lengths + s.running,
            running=s.running & ~(token[:, None] == stop).any(-1),
            i=s.i + 1,
        )

    zeros = jnp.zeros(rows, jnp.int32)
    start = Loop(
        cache=cache, tokens=jnp.zeros((rows, width), jnp.int32), logits=seen, lengths=zeros, running=zeros == 0, i=jnp.int32(0)
    )
    return lax.while_loop(lambda s: (s.i < limit) & anyone(s.running), body, start)
