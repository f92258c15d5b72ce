"""Memory: what a compressed prompt leaves alive, byte by byte, and the peak of the process that made it."""

import gc
import resource
from collections.abc import Sequence
from typing import Any

import jax

import kvjax
from experiments.bench import conditions
from experiments.policies import Named


def memory(lm: Any, ids: Sequence[int], named: Named, *, new: int) -> dict[str, Any]:
    """Compress `ids`, release the prefill and account for every live buffer; then decode `new` tokens and read the peak.

    Live buffers, not the process, show what compression frees: memory once touched by the prefill stays with the process.

    Returns:
        conditions, bytes (weights, cache allocated, exact, rounding, room, live), and the process's peak.
    """
    pre = kvjax.prefill(lm, list(ids), needs=named.policy)
    dense, dtype = pre.nbytes, pre.rows[0].k[0].dtype
    pre = kvjax.second_pass(lm, pre, named.policy)
    cache = kvjax.compress(pre, named.policy)
    del pre
    gc.collect()
    live = sum(array.nbytes for array in jax.live_arrays())
    expected = lm.nbytes + cache.nbytes + cache.logits.nbytes
    kvjax.decode(lm, cache, named.policy, max_new_tokens=new, stop=())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    exact = cache.used_nbytes
    return conditions("memory", str(dtype), f"{len(ids)} tokens, {named.name} at {named.budget:g}") | {
        "memory": {
            "weights": lm.nbytes,
            "dense prefill, released": dense,
            "cache allocated": cache.nbytes,
            "cache exact: slots in use x bytes a slot": exact,
            "live after the prefill is released": live,
            "peak of the process": peak,
        },
        "ratios": {
            "allocated / exact": cache.nbytes / exact,
            "live / (weights + cache)": live / expected,
            "peak / GB": peak / 1e9,
        },
    }
