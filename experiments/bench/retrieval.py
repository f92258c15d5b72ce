"""Retrieval: ms per token of methods whose queries read a part of the slots, or of host memory, over random keys and values.

Random keys let a context be longer than the model's own; what is timed does not depend on what the tokens say, except for
how many slots a share tau of the attention mass takes: flat attention over random keys is the worst case of that.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kvjax
from experiments.bench import conditions, summary
from kvjax import evidence as ev
from kvjax.encode import ByCallback, OnDevice, OnHost
from kvjax.evidence import WindowQueries
from kvjax.prefill.run import Prefilled, PrefilledRow
from kvjax.retrieve import FullAttention, SharedPages


def synthetic(lm: Any, context: int, seed: int = 0) -> Prefilled:
    """A prefill of `context` random keys, values and last queries, of the model's shape and dtype."""
    d, dtype, draw = lm.decoder, lm.params["embed"]["weight"].dtype, np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(draw.standard_normal(shape, np.float32), dtype)

    kv = [(normal(1, d.heads, context, d.head_dim), normal(1, d.heads, context, d.head_dim)) for _ in range(d.layers)]
    needs, length = frozenset({WindowQueries(1)}), jnp.asarray([context], jnp.int32)
    query = {WindowQueries(1).key: normal(1, d.heads, d.groups, 1, d.head_dim)}
    seen = ev.Evidence(data=query, length=length, rope=d.rope)
    row = PrefilledRow(
        ids=jnp.zeros(context, jnp.int32), length=length, k=tuple(k for k, _ in kv), v=tuple(v for _, v in kv),
        evidence=(seen,) * d.layers, logits=jnp.zeros(d.vocab, jnp.float32),
    )  # fmt: skip
    return Prefilled(rows=(row,), needs=ev.ordered(needs), decoder=d)


def longer(lm: Any, context: int) -> Any:
    """The model with room for `context` positions: its rotary embedding goes on, which is enough to time it."""
    if context <= lm.decoder.max_positions:
        return lm
    return lm.replace(decoder=replace(lm.decoder, config=replace(lm.decoder.config, max_positions=context)))


def cells(budget: int | float) -> dict[str, Any]:
    """What is timed, by name."""
    methods = kvjax.methods
    heterocache = methods.heterocache(budget=budget)

    def refresh(theta: float) -> kvjax.Policy:
        return heterocache.replace(retrieve=heterocache.retrieve.replace(theta=theta))

    return {
        "full cache": methods.full(),
        "heterocache, static": heterocache.replace(retrieve=FullAttention()),
        "heterocache, watching, no trigger": refresh(0.0),
        "heterocache, a fetch every window": refresh(1.1),
        "hcattention, values on the host": methods.hcattention(placement=OnHost()),
        "hcattention, values by callback": methods.hcattention(placement=ByCallback()),
        "hcattention, values on the device": methods.hcattention(placement=OnDevice()),
        "quest, 1,024 tokens a query head": methods.quest(token_budget=1024),
        "quest, 1,024 tokens a KV head": methods.quest(token_budget=1024, heads=SharedPages()),
    }


def retrieval(
    lm: Any, context: int, budget: int | float, *, rounds: int, new: int, done: Callable = lambda count: None
) -> dict[str, Any]:
    """Time decoding `new` tokens over each cell's cache, a method's cells in turn; the first round compiles and is not counted.

    Returns:
        conditions, ms per token, device and host bytes by cell; for hcattention the share of slots read and the bytes that
        crossed per step (by the paper's count, indices included); for heterocache the bytes fetched per refresh; for quest the
        share of pages that layers which select read.
    """
    lm = longer(lm, context + new + 1)
    pre, found = synthetic(lm, context), cells(budget)
    dtype = str(lm.params["embed"]["weight"].dtype)
    ms: dict[str, list[float]] = {name: [] for name in found}
    facts: dict[str, dict[str, Any]] = {}
    for _, names in groupby(found, key=lambda name: name.partition(",")[0]):  # caches of one method at a time: long ones are large
        caches = {name: kvjax.compress(pre, found[name]) for name in names}
        for count in range(rounds + 1):
            for name, cache in caches.items():  # in turn, so that the machine's phases meet all of them alike
                out = kvjax.decode(lm, cache, found[name], max_new_tokens=new, stop=())
                if count:
                    ms[name].append(out.info["ms_per_token"])
                facts[name] = {"device_bytes": cache.nbytes, "host_bytes": cache.host_nbytes} | _traffic(lm, out, new)
                del out
                done(1)
        del caches, cache
    shape = f"{context} random keys, {new} new, batch 1, budget {budget:g}"
    return conditions("retrieval", dtype, shape) | {
        "ms_per_token": {name: summary(values) for name, values in ms.items()},
        "cells": facts,
    }


def _traffic(lm: Any, out: Any, new: int) -> dict[str, Any]:
    state, d = out.cache.retrieval, lm.decoder
    if hasattr(state, "picked"):
        queries = new * d.layers * d.heads * d.groups
        crossed = state.crossing_nbytes(d.head_dim, queries) / new
        return {"share_read": float(state.share.mean()), "crossing_bytes_per_step": crossed}
    if hasattr(state, "most"):
        return {"share_of_pages_read": float(state.share.mean())}
    if hasattr(state, "refreshes"):
        count = int(jax.device_get(state.refreshes).sum())
        return {"refreshes": count, "fetched_bytes": int(jax.device_get(state.fetched_nbytes).sum())}
    return {}
