"""Bits of what a cache holds, counted as a model in 16 bits would have them, whatever the model computes in.

    bits = 8 · bytes / (2 d · tokens held in all heads and layers)

Bytes are those of the device and of the host: codes, steps, positions, statistics and bookkeeping as they are, numbers in the
model's dtype at two bytes each. Which these are those say that store them: pools are of the model's dtype where two dtypes make two
of them (`Encoder.raw`, `RetrieverState.raw`, `Need.empty`). A full cache has a little more than 16 bits.
"""

from typing import Any

import jax

import kvjax
from kvjax.cache.retriever_state import RetrieverState
from kvjax.evidence.need import Need
from kvjax.placement.store import is_store, store_nbytes
from kvjax.prefill.run import shape_of


def stored_bits(lm: Any, cache: kvjax.KVCache, policy: kvjax.Policy) -> float:
    """Bits of a number that the cache holds: all that it takes, shared out among them.

    Example:
        Codes of 8 bits with a float16 step and minimum for every 32 of them, and nothing else: 9.
    """
    return 8 * half_nbytes(lm, cache, policy) / (2 * lm.decoder.head_dim * int(cache.held.sum()))


def half_nbytes(lm: Any, cache: kvjax.KVCache, policy: kvjax.Policy) -> int:
    """Bytes of the cache, on the device and on the host, with two for every number in the model's dtype."""
    retrieval = cache.retrieval.raw if isinstance(cache.retrieval, RetrieverState) else ()
    raw = [policy.encode.raw(cache, lm.decoder.head_dim), retrieval, _evidence(lm, cache, policy)]
    return cache.nbytes + cache.host_nbytes - sum(map(_beyond, jax.tree.leaves(raw, is_leaf=is_store)))


def _beyond(x: Any) -> int:
    """Bytes of rows that 16-bit numbers would not take."""
    return store_nbytes(x) * max(0, x.dtype.itemsize - 2) // x.dtype.itemsize


def _evidence(lm: Any, cache: kvjax.KVCache, policy: kvjax.Policy) -> list[Any]:
    """What scorers go on reading while decoding and have in the model's dtype."""
    needs = [need.at(0) for need in policy.decode_score.needs if need.carried and cache.evidence]
    wide, narrow = ([jax.tree.leaves(_empty(lm, need, dtype)) for need in needs] for dtype in ("float32", "bfloat16"))
    found = []
    for need, *forms in zip(needs, wide, narrow, strict=True):
        held = zip(*(jax.tree.leaves(of_layer.data[need.key]) for of_layer in cache.evidence), strict=True)
        found += [x for x, one, other in zip(held, *forms, strict=True) if one.dtype != other.dtype]
    return found


def _empty(lm: Any, need: Need, dtype: str) -> Any:
    """Shapes of what is recorded of a prompt of one token."""
    return jax.eval_shape(lambda: need.empty(shape_of(lm.decoder, 1, dtype)))
