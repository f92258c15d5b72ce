"""Decoding for long at a budget that stays: bytes, positions and numbers after every block, and what ranking costs a step."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import kvjax
from experiments.bench import conditions, summary
from experiments.console import write_json
from experiments.train.random_model import random_model
from kvjax.cache.layout import resize
from kvjax.types import DECODING

#: Nothing is told of a model's text here, so that it may be random; a head has 64 channels.
MODEL = "random:layers=4,width=256,heads=4,hidden=512,vocab=256,positions=65536,theta=10000.0"
#: What the others are timed in turns with: it ranks nothing.
BESIDE = "streaming_llm"
#: When methods act that hold more with every token; and those that act while decoding, but keep tokens in fewer bits, or for as
#: long as a head's pattern says.
_GROWING = ("nothing is evicted", "after the prompt")
_GROWING_METHODS = ("fastgen", "mikv", "zipcache")


def methods() -> list[str]:
    """The methods that hold a budget while decoding and need neither training nor calibration."""
    infos = [kvjax.methods.info(name) for name in kvjax.methods.names()]
    able = [info.name for info in infos if info.acts not in _GROWING and not info.requires and "budget" in info.parameters]
    return [name for name in able if name not in _GROWING_METHODS]


def long_decode(
    names: Sequence[str], *, model: str, budget: int, prompt: int, tokens: int, block: int, path: Path | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> dict[str, Any]:  # fmt: skip
    """Each method decodes `tokens` tokens in blocks, a block of `BESIDE` beside each of its own.

    Args:
        names: methods that take `budget=`.   model: as `random_model`.   budget: slots a KV head.   prompt, tokens, block: tokens.
        path: a result of an earlier run, whose methods are not run again; written after every method.

    Returns:
        conditions, and of each method: tokens, the most slots a head held, the most bytes the cache took and what it takes with all
        heads at their bound and room up to the next eviction, milliseconds a token of its own and of `BESIDE` (medians of blocks
        but the first), and their ratio.

    Raises:
        ValueError: bytes or heads above what the schedule bounds, numbers that are none, positions that are not those of the text;
            a result of other conditions at `path`.
    """
    words = f"{model}, {budget} slots a head, {prompt} tokens, then {tokens} in blocks of {block}"
    result = conditions("long", "float32", words)
    result["cells"] = _found(path, result) if path is not None and path.is_file() else {}
    lm = random_model(model)
    ids = np.random.default_rng(0).integers(0, lm.decoder.vocab, prompt).tolist()
    for name in names:
        if name in result["cells"]:
            done(tokens // block)
            continue
        policies = [getattr(kvjax.methods, one)(budget=budget) for one in (name, BESIDE)]
        result["cells"][name] = in_turns(lm, ids, policies, tokens=tokens, block=block, done=done)
        write_json(path, result)
    return result


def _found(path: Path, mine: Mapping[str, Any]) -> dict[str, Any]:
    """The methods of an earlier run under the same conditions: a table tells of one commit and one machine."""
    found = json.loads(path.read_text())
    for name, value in mine.items():
        if found.get(name) != value:
            raise ValueError(f"{path} holds a run of {name} {found.get(name)!r}, this is {value!r}: choose another file")
    return found["cells"]


def in_turns(
    lm: Any, ids: list[int], policies: Sequence[kvjax.Policy], *, tokens: int, block: int, done: Callable[[int], None]
) -> dict[str, Any]:
    """A policy and the one beside it, block by block; what is told is the first one's."""
    pre = kvjax.prefill(lm, ids, needs=policies)
    caches = [kvjax.compress(pre, policy) for policy in policies]
    ms: list[list[float]] = [[], []]
    most = policies[0].fullest(caches[0].lengths, np.asarray(caches[0].budget), tokens, 1)
    room = policies[0].fullest(most, np.asarray(caches[0].budget), tokens, 1)
    bound, slots, held = resize(caches[0], policies[0].encode.room(caches[0], room), steps=DECODING).nbytes, 0, 0
    for at in range(0, tokens, block):
        for which, policy in enumerate(policies):
            out = kvjax.decode(
                lm, caches[which], policy, max_new_tokens=block, stop=(), sampler=kvjax.Sample(), key=jax.random.key(at)
            )
            caches[which] = out.cache
            ms[which].append(out.info["ms_per_token"])
        check(caches[0], len(ids) + at + block, most)
        slots, held = max(slots, int(caches[0].lengths.max())), max(held, caches[0].nbytes)
        done(1)
    if held > bound:
        raise ValueError(f"the cache took {held} bytes, above the {bound} that its bound of slots takes")
    mine, other = (summary(values[1:] or values)["median"] for values in ms)
    sizes = {"tokens": tokens, "slots": slots, "bytes": held, "bytes_at_bound": bound}
    return sizes | {"ms": mine, "beside_ms": other, "ratio": mine / other}


def check(cache: kvjax.KVCache, text: int, most: np.ndarray) -> None:
    """Raise ValueError where a cache is not that of a text of so many tokens with at most so many slots a head, int [L, B, H]."""
    if np.asarray(cache.position).tolist() != [text]:
        raise ValueError(f"the next token's position is {np.asarray(cache.position).tolist()}, the text has {text} tokens")
    if not np.isfinite(np.asarray(cache.logits)).all():
        raise ValueError(f"after {text} tokens the logits are no numbers")
    if (cache.lengths > most).any():
        raise ValueError(f"after {text} tokens heads hold {cache.lengths.max()} slots, above their bound of {most.max()}")
    for layer in range(cache.start.shape[0]):
        for row in cache.kept(layer):
            for head in row:
                if len(head) and (np.unique(head).size < head.size or head.min() < 0 or head.max() >= text):
                    raise ValueError(f"after {text} tokens a head of layer {layer} holds positions that are not the text's")


def table(result: Mapping[str, Any]) -> list[list[str]]:
    """A line a method, the dearest step first: method, slots, kB, kB at most, milliseconds a token, those of `BESIDE`, ratio."""
    cells = sorted(result["cells"].items(), key=lambda item: -item[1]["ratio"])
    return [
        [name, f"{x['slots']}", *(f"{x[size] / 1e3:.0f}" for size in ("bytes", "bytes_at_bound"))]
        + [f"{x['ms']:.2f}", f"{x['beside_ms']:.2f}", f"{x['ratio']:.2f}"]
        for name, x in cells
    ]
