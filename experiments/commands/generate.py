"""`kvjax generate`: one prompt, one policy; the text as it comes, then what it took."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

import kvjax
from experiments.console import Dtype, JsonFile, ModelName, Seed, err, out, working, write_json
from experiments.files import read
from experiments.full_cache import MB, full_nbytes
from experiments.policies import policy_of
from experiments.token_text import pieces
from models.numbers import MOST

PolicySpec = Annotated[str, typer.Option("--policy", help="NAME[:key=value,...], such as snapkv:window=32.")]
BudgetText = Annotated[str | None, typer.Option("--budget", help="256 slots per KV head, or 0.5 of the prompt kept.")]
PromptFile = Annotated[Path | None, typer.Option("--prompt-file", help="Read the prompt from this file.")]
Chat = Annotated[bool, typer.Option("--chat", help="Put the prompt through the chat template as a user's turn.")]


def generate(
    model: ModelName,
    policy: PolicySpec = "full",
    budget: BudgetText = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt itself.")] = None,
    prompt_file: PromptFile = None,
    chat: Chat = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: the likeliest token each time.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, max=MOST, help="Sample from the k likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens that hold this mass.")] = 1.0,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    json_file: JsonFile = None,
) -> None:
    """Generate from a compressed prompt, streaming; then print bytes full and allocated, and ms per token."""
    named = policy_of(policy, budget)
    text = prompt_text(prompt, prompt_file)
    sampler = sampler_of(temperature, top_k, top_p)
    lm, ids = load_and_encode(model, dtype, text, chat=chat)
    with working(f"reading {len(ids)} tokens"):
        cache, prefill_seconds = _read(lm, ids, named.policy)
    key = jax.random.key(seed)
    steps = kvjax.stream(lm, cache, named.policy, max_new_tokens=max_new_tokens, sampler=sampler, key=key)
    tokens, seconds = _print_stream(lm, _announced(steps))
    facts = _facts(lm, cache, ids, tokens, seconds) | {"prefill_seconds": prefill_seconds, "policy": named.policy.in_full()}
    _print_facts(facts)
    write_json(json_file, facts)


def sampler_of(temperature: float, top_k: int, top_p: float) -> kvjax.Greedy | kvjax.Sample:
    """The sampler of three options.

    Raises:
        ValueError: one of sampling at temperature 0, which takes the likeliest token, or one out of range.
    """
    if temperature > 0:
        return kvjax.Sample(temperature, top_k, top_p)
    if top_k != 0 or top_p != 1.0:
        raise ValueError("--top-k and --top-p are for sampling, and at temperature 0 nothing is drawn: give --temperature above 0")
    return kvjax.Greedy()


def prompt_text(prompt: str | None, file: Path | None) -> str:
    """The one prompt given.

    Raises:
        ValueError: none, two, or an empty one. OSError: the file cannot be read.
    """
    if (prompt is None) == (file is None):
        raise ValueError("give exactly one of --prompt and --prompt-file")
    text = prompt if file is None else read(file).decode("utf-8", errors="replace")
    if not text.strip():
        raise ValueError("the prompt is empty" if file is None else f"the prompt in {file} is empty")
    return text


def load_and_encode(model: str, dtype: str, text: str, *, chat: bool) -> tuple[Any, list[int]]:
    """The model and the ids of the prompt."""
    import models

    with err.status(f"loading {model}"):
        lm = models.load(model, dtype=dtype)
    return lm, lm.encode([{"role": "user", "content": text}] if chat else text)


def _read(lm: Any, ids: list[int], policy: kvjax.Policy) -> tuple[kvjax.KVCache, float]:
    """The compressed prompt, and the seconds of reading it: all of them where tokens leave it while it is read."""
    began = time.perf_counter()
    if policy.select.leaves:
        return jax.block_until_ready(kvjax.prefill(lm, ids, streaming=policy)), time.perf_counter() - began
    pre = jax.block_until_ready(kvjax.second_pass(lm, kvjax.prefill(lm, ids, needs=policy), policy))
    seconds = time.perf_counter() - began
    return kvjax.compress(pre, policy), seconds


def _announced(steps: Iterator[Any]) -> Iterator[Any]:
    """The same steps; while the first is waited for, stderr says so."""
    with working("first token"):
        first = next(steps)
    yield first
    yield from steps


def _print_stream(lm: Any, steps: Iterable[Any]) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    seconds: list[float] = []

    def taken() -> Iterator[int]:
        began = time.perf_counter()
        for step in steps:
            token = int(step[0])
            seconds.append(time.perf_counter() - began)
            tokens.append(token)
            if token not in lm.stop_ids:
                yield token
            began = time.perf_counter()

    for text, _ in pieces(lm, taken()):
        out.print(text, end="", markup=False)
    out.print()
    return tokens, seconds


def _facts(lm: Any, cache: Any, ids: list[int], tokens: list[int], seconds: list[float]) -> dict[str, Any]:
    """Numbers of a run; the first step compiles, so ms per token leaves it out where there are more."""
    decoder = lm.decoder
    heads = decoder.layers * decoder.heads
    timed = sorted(seconds[1:] or seconds)
    return {
        "text": lm.decode([token for token in tokens if token not in lm.stop_ids]),
        "tokens": tokens,
        "prompt_tokens": len(ids),
        "full_bytes": full_nbytes(lm, len(ids)),
        "allocated_bytes": cache.nbytes,
        "host_bytes": cache.host_nbytes,
        "kept_share": int(cache.lengths.sum()) / (heads * len(ids)),
        "first_token_seconds": seconds[0],
        "ms_per_token": 1e3 * timed[len(timed) // 2],
    }


def _print_facts(facts: dict[str, Any]) -> None:
    host = f" + {facts['host_bytes'] / MB:.2f} MB on the host" if facts["host_bytes"] else ""
    err.print(
        f"prompt {facts['prompt_tokens']} tokens; full cache {facts['full_bytes'] / MB:.2f} MB, "
        f"allocated {facts['allocated_bytes'] / MB:.2f} MB{host} ({100 * facts['kept_share']:.1f}% of slots kept); "
        f"{len(facts['tokens'])} tokens at {facts['ms_per_token']:.1f} ms/token (median)",
        soft_wrap=True,
    )
