"""Greedy decoding with the full cache, one step at a time, its attention rows in sight."""

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.calibrate.recorder import Recorder
from kvjax.compress.run import compress
from kvjax.decode.headroom import make_room
from kvjax.decode.step import Spec, step
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled
from kvjax.types import power_of_two


def row_slots(length: int, steps: int) -> int:
    """Width of the recorded rows for a prompt of `length` tokens: a power of two, so that few programs exist."""
    return power_of_two(length + steps + 1)


@partial(jax.jit, donate_argnames=("cache",))
def _step(spec: Spec, params, cache: KVCache, token) -> KVCache:
    return step(spec, params, cache, token, running=jnp.ones(token.shape, bool))


def watch(lm, pre: Prefilled, first: int | None, *, steps: int, stop: Sequence[int]) -> Iterator[tuple[int, KVCache]]:
    """Yield (fed token's successor y_t, cache) for up to `steps` steps; the cache holds the rows that y_t was predicted with.

    A yielded cache is gone when the next one is asked for. Slot j of a region is position j of the text.

    Args:
        pre: one prompt.   first: the token to feed first; None for the one the prompt predicts.
        stop: tokens after which nothing more is fed (the stop token itself is yielded).
    """
    recorder = Recorder(slots=row_slots(pre.lengths[0], steps), groups=lm.decoder.groups)
    policy = Policy(retrieve=recorder)
    cache, padded_slots = make_room(compress(pre, policy), policy, steps)
    spec = Spec.of(lm.decoder, policy, padded_slots)
    token = int(cache.logits[0].argmax()) if first is None else first
    for _ in range(steps):
        cache = _step(spec, lm.params, cache, jnp.asarray([token], jnp.int32))
        token = int(cache.logits[0].argmax())
        yield token, cache
        if token in stop:
            return


def rows_of(cache: KVCache) -> PyTree:
    """The last step's attention of row 0, float32 [l, q, n]."""
    return jnp.stack([rows[0].reshape(-1, rows.shape[-1]) for rows in cache.retrieval.rows])
