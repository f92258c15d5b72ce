"""Decode: ms per token with the full cache and with a compressed one, ours, the peers' and the rivals' in one run."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import kvjax
from experiments.bench import conditions, summary
from experiments.bench.beside import cell, peers, rivals, said
from experiments.policies import Named

FULL = "kvjax, full cache"
WEIGHTS = "a plain sum of the weights"


def decode(
    lm: Any,
    ids: Sequence[int],
    named: Named,
    *,
    rounds: int,
    new: int,
    gguf: Path | None = None,
    done: Callable = lambda count: None,
) -> dict[str, Any]:
    """Time decoding after `ids` with everything kept and with `named`.

    Our rounds run before and after the peers', so that a slow phase of the machine shows as a spread and not as a ratio.

    Args:
        lm: the language model. ids: the context. named: the policy to measure. gguf: the model for `beside.rivals`.
        rounds: times each cell decodes `new` tokens, before the peers and again after them.

    Returns:
        conditions, ms per token by cell, allocated bytes by cell, ratios (above 1: kvjax is faster).
    """
    dtype = str(lm.params["embed"]["weight"].dtype)
    ours = f"kvjax {named.name} {named.budget:g}"
    policies = {FULL: kvjax.methods.full(), ours: named.policy}
    pre = kvjax.prefill(lm, list(ids), needs=[named.policy])
    caches = {name: kvjax.compress(kvjax.second_pass(lm, pre, policy), policy) for name, policy in policies.items()}
    share = float(caches[ours].lengths.mean()) / len(ids)
    allocated = {name: cache.nbytes for name, cache in caches.items()}
    del pre
    ms = _ours(lm, policies, caches, rounds=rounds, new=new, done=done)
    cells = [x for x in (cell(None, 1.0), cell(named.name.partition(":")[0], round(share, 4))) if x]
    theirs = peers(lm, cells, [{"context": list(ids), "fed": []}], dtype=dtype, rounds=1, new=new)
    done(1)
    slots = round(share * len(ids))
    others = rivals(lm, ids, gguf, dtype=dtype, rounds=rounds, new=new, slots=slots if share < 1 else None)
    done(1)
    again = _ours(lm, policies, caches, rounds=rounds, new=new, done=done)
    ms = {name: ms[name] + again[name] for name in ms}
    for name, runs in (theirs.get("cells", {}) | others.get("cells", {})).items():
        ms[name] = [1e3 * step for run in runs for step in run["steps"]]
    allocated |= {name: runs[0]["bytes"] for name, runs in theirs.get("cells", {}).items()}
    times = {name: summary(values) for name, values in ms.items()}
    return conditions("decode", dtype, f"{len(ids)} tokens of context, {new} new, batch 1") | {
        "ms_per_token": times,
        "allocated_bytes": allocated,
        "kept_share": share,
        "peers": theirs.get("versions") or theirs["missing"],
        "rivals": said(others),
        "ratios": _ratios(times, ours),
    }


def _ours(lm, policies, caches, *, rounds: int, new: int, done: Callable) -> dict[str, list[float]]:
    """ms per token of each cell, and of reading the weights once, round after round; the first, which compiles, is not counted."""
    ms: dict[str, list[float]] = {name: [] for name in (*policies, WEIGHTS)}
    for count in range(rounds + 1):
        found = {}
        for name, policy in policies.items():
            found[name] = kvjax.decode(lm, caches[name], policy, max_new_tokens=new, stop=()).info["ms_per_token"]
            done(1)
        found[WEIGHTS] = _read(lm.params, new)
        for name in ms if count else ():
            ms[name].append(found[name])
    return ms


def _read(params: Any, times: int) -> float:
    """ms of a sum over each of the model's weights: what a step of one row cannot be faster than."""
    began = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(_sums(params))
    return 1e3 * (time.perf_counter() - began) / times


@jax.jit
def _sums(params: Any) -> list[jax.Array]:
    return [x.sum(dtype=jnp.float32) for x in jax.tree.leaves(params)]


def _ratios(times: dict[str, dict], ours: str) -> dict[str, float]:
    """Each peer's time against ours of the same kind, and our own full cache against the compressed one."""
    middle = {name: value["median"] for name, value in times.items()}
    ratios = {f"{FULL} / {ours}": middle[FULL] / middle[ours], f"{ours} / {WEIGHTS}": middle[ours] / middle[WEIGHTS]}
    for name in middle:
        if name != WEIGHTS and not name.startswith("kvjax"):
            mine = FULL if "full cache" in name else ours
            ratios[f"{name} / {mine}"] = middle[name] / middle[mine]
    return ratios
