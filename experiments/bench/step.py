"""Whole decode steps of a model of a named shape: random weights over random caches, without a prefill.

What a step takes does not depend on what tokens say. Caches are made one after the other, because long ones fill a card: cells do
not take turns, and a slow phase of a shared machine may meet one of them alone.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax

import kvjax
import models
from experiments.bench import conditions, summary
from experiments.bench.model_shapes import serving
from experiments.bench.plan import GIB, cache_bytes
from experiments.bench.planned_cache import planned
from experiments.bench.random_cache import check_plain, random_cache
from experiments.policies import Named
from kvjax.checks import check_finite
from kvjax.policy import Policy
from models import weights

FULL = "full cache"
#: A context and a policy's name.
Of = tuple[int, str]


def step(
    decoder: Any, named: Sequence[Named], contexts: Sequence[int], *, dtype: str, rounds: int, new: int,
    done: Callable = lambda count: None,
) -> dict[str, Any]:  # fmt: skip
    """Time decoding `new` tokens after each context, with everything kept and with each policy.

    Args:
        decoder: from `decoder_of`.   named: policies with their budgets.   contexts: tokens.
        dtype: weights, activations and cache.   rounds: times a cell decodes, after one that compiles and is not counted.

    Returns:
        conditions; ms per token, allocated bytes and slots per head by cell; bytes of the weights that a step reads; by context the
        full cache's time over each cell's (above 1: compressed is faster), and the same of the bytes of weights and cache: as much
        as it could be, were a step nothing but reading them.

    Raises:
        ValueError: a policy that random numbers cannot stand in for, or that does not fit a context; a cell the device cannot hold.
        FloatingPointError: logits that are not finite.
    """
    found = cells(named, contexts)
    check(decoder, found, dtype=dtype, new=new, room=(jax.devices()[0].memory_stats() or {}).get("bytes_limit"))
    lm = models.random(decoder.config, dtype=dtype)
    measured = [_measured(lm, policy, context, rounds=rounds, new=new, done=done) for (context, _), policy in found.items()]
    ms, allocated, slots = (dict(zip(found, column, strict=True)) for column in zip(*measured, strict=True))
    read = _read(lm)
    shape = f"{decoder.layers} layers, width {decoder.config.width}, random weights and caches, {new} new, batch 1"
    return conditions("step", dtype, shape) | {
        "device": jax.devices()[0].device_kind,
        "ms_per_token": _labelled(ms),
        "allocated_bytes": _labelled(allocated),
        "slots_per_head": _labelled(slots),
        "weights_bytes": read,
        "ratios": _ratios({of: x["median"] for of, x in ms.items()}),
        "bytes_ratios": _ratios({of: read + x for of, x in allocated.items()}),
    }


def cells(named: Sequence[Named], contexts: Sequence[int]) -> dict[Of, Policy]:
    """What is timed: after each context the full cache, then every policy."""
    policies = {FULL: kvjax.methods.full()} | {f"{x.name} {x.budget}": x.policy for x in named}
    return {(context, name): policy for context in contexts for name, policy in policies.items()}


def check(decoder: Any, found: Mapping[Of, Policy], *, dtype: str, new: int, room: int | None) -> None:
    """Raise ValueError for what `step` refuses, before anything is allocated; `room`: bytes of the device, None if unknown."""
    held = weights.nbytes(jax.eval_shape(partial(decoder.init, dtype=dtype), jax.random.key(0)))
    for (context, name), policy in found.items():
        check_plain(name, policy)
        served = serving(decoder, context + new)
        both = [planned(served, policy, context, new=n, dtype=dtype) for n in (0, new)]  # decoding copies the cache it is given
        needed = held + sum(sum(cache_bytes(x)[0].values()) for x in both)
        if room is not None and needed > room:
            raise ValueError(
                f"{_label(context, name)}: weights, the cache and decoding's copy of it take {needed / GIB:.1f} GiB, JAX has "
                f"{room / GIB:.1f} of the device: give it more with XLA_PYTHON_CLIENT_MEM_FRACTION=0.95, or ask for fewer tokens"
            )


def _measured(lm: Any, policy: Policy, context: int, *, rounds: int, new: int, done: Callable) -> tuple[dict, int, int]:
    """One cell: its times, the bytes of its cache, slots a head."""
    lm, ms = lm.replace(decoder=serving(lm.decoder, context + new)), []
    cache = random_cache(lm.decoder, policy, context, dtype=lm.params["embed"]["weight"].dtype)
    for _ in range(rounds + 1):
        out = kvjax.decode(lm, cache, policy, max_new_tokens=new, stop=())
        check_finite(out.cache.logits, "the logits after random tokens")
        ms.append(out.info["ms_per_token"])
        del out  # its cache goes before the next copy is made
        done(1)
    return summary(ms[1:]), cache.nbytes, int(cache.lengths.max())


def _read(lm: Any) -> int:
    """Bytes of the weights a step reads: of an embedding that is not the head too, it takes one row."""
    return lm.nbytes - (0 if lm.config.tied else weights.nbytes(lm.params["embed"]))


def _ratios(values: Mapping[Of, float]) -> dict[str, float]:
    """The full cache's value over each other cell's of the same context."""
    pairs = {of: values[of[0], FULL] / value for of, value in values.items() if of[1] != FULL}
    return {_label(context, f"{FULL} / {name}"): ratio for (context, name), ratio in pairs.items()}


def _labelled(values: Mapping[Of, Any]) -> dict[str, Any]:
    return {_label(*of): value for of, value in values.items()}


def _label(context: int, what: str) -> str:
    return f"{context} tokens, {what}"
