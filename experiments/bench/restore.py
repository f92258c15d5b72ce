"""Seconds to the first token: a conversation read from its file beside a prefill of the same prompt."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kvjax
from experiments.bench import conditions, interleaved, summary


def restore(
    lm: Any, ids: Sequence[int], policy: kvjax.Policy, *, rounds: int, folder: Path | None = None,
    done: Callable = lambda count: None,
) -> dict[str, Any]:  # fmt: skip
    """Time the first token three ways: prefilled afresh, from a saved prefill, from a saved conversation.

    Args:
        ids: the prompt.   policy: what keeps it; its budget counts.
        rounds: counted runs of each; medians are reported.
        folder: where the files go; None: a temporary folder. They are in the system's memory when they are read.

    Returns:
        conditions, seconds by way, ratios (above 1: faster than a fresh prefill), memory: bytes of files and cache.
    """

    def cut(pre: kvjax.Prefilled) -> kvjax.KVCache:
        return kvjax.compress(kvjax.second_pass(lm, pre, policy), policy)

    with tempfile.TemporaryDirectory(dir=folder) as made:
        prompt, talk = Path(made) / "prompt", Path(made) / "talk"
        pre = kvjax.prefill(lm, list(ids), needs=policy)
        cache = cut(pre)
        kvjax.save_prefilled(pre, prompt, lm)
        kvjax.save_cache(cache, talk, lm, policy)
        sizes = {"saved prefill": prompt.stat().st_size, "saved conversation": talk.stat().st_size, "cache": cache.nbytes}
        del pre, cache
        work = {
            "fresh prefill": lambda: cut(kvjax.prefill(lm, list(ids), needs=policy)),
            "saved prefill": lambda: cut(kvjax.load_prefilled(prompt, lm)),
            "saved conversation": lambda: kvjax.load_cache(talk, lm, policy),
        }
        first = {name: _first_token(lm, policy, make) for name, make in work.items()}
        seconds = {name: summary(values) for name, values in interleaved(first, rounds, done=done).items()}
    fresh = seconds["fresh prefill"]["median"]
    dtype = str(lm.params["embed"]["weight"].dtype)
    return conditions("restore", dtype, f"{len(ids)} tokens, batch 1") | {
        "seconds": seconds,
        "memory": sizes,
        "ratios": {f"fresh prefill / {name}": fresh / seconds[name]["median"] for name in ("saved prefill", "saved conversation")},
    }


def _first_token(lm: Any, policy: kvjax.Policy, make: Callable[[], kvjax.KVCache]) -> Callable[[], Any]:
    """From nothing to the first token."""
    return lambda: kvjax.decode(lm, make(), policy, max_new_tokens=1, stop=()).tokens
