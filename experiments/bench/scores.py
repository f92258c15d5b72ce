"""Scores beside kvpress's: the same prompts, ratios and rule of grading, and one prefill a prompt for every cell of it.

A ratio is the share removed; a head keeps max(1, int(length · (1 - ratio))) slots, in floating point as kvpress counts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvjax
from experiments.bench.beside import once
from experiments.bench.peer_scores import GRADERS, NEW_TOKENS, examples
from experiments.bench.peers import EPSILON
from experiments.measure import measure
from experiments.memory_maps import forget_programs
from experiments.policies import Named
from experiments.provenance import digest
from experiments.rows import RowFile, key
from experiments.tasks.answering import Answering
from experiments.tasks.chat import continuation
from experiments.tasks.example import Example
from kvjax import methods
from kvjax.prefill import PrefillAttention

#: kvpress's presses with the parameters of its table: its defaults, but epsilon 0.02.
METHODS: dict[str, Callable[[int], Any]] = {
    "snapkv": lambda slots: methods.snapkv(slots, window=64),
    "streaming_llm": methods.streaming_llm,
    "tova": lambda slots: methods.tova(slots, protect_last=True),
    "knorm": methods.knorm,
    "expected_attention": lambda slots: methods.expected_attention(slots, eps=EPSILON),
}


@dataclass(frozen=True)
class Given:
    """A prefill that is there already, for `measure`."""

    pre: Any

    def of(self, lm: Any, ids: Sequence[int], needs: Any, attention: PrefillAttention) -> Any:
        del lm, ids, needs, attention
        return self.pre


def kept(length: int, ratio: float) -> int:
    """Slots a head keeps of a prompt of `length` tokens."""
    return max(1, int(length * (1 - ratio)))


def cells(names: Iterable[str], length: int) -> list[Named]:
    """ "METHOD/RATIO" → the cells of a prompt of `length` tokens."""
    made = []
    for name in names:
        method, _, ratio = name.partition("/")
        slots = kept(length, float(ratio))
        made.append(Named(name, slots, once(METHODS[method](slots))))
    return made


def scores(
    lm: Any, sets: Sequence[dict], haystack: Sequence[int], rows: RowFile, *, common: dict, prompts: int, done: Callable
) -> None:  # fmt: skip
    """Append a row for each prompt that `rows` lacks: our score and answer by cell, the full cache's tokens and gaps.

    Args:
        lm: the language model.   sets: of `peer_scores.load`.   haystack: ids of the text that needles are hidden in.
        rows: the open result file, made with `common`.   prompts: of each set, at most.   done: told of every prompt.

    Raises:
        ValueError: a prompt made here is not the one the peers got.
    """
    for found in sets:
        for example in examples(lm, found, haystack, prompts):
            row = common | row_key(found, example.index)
            if key(row) not in rows:
                rows.append(row | _answers(lm, found, example))
                forget_programs()
            done(1)


def row_key(found: dict, index: int) -> dict[str, Any]:
    """The key of a prompt's row; policies that changed since give another."""
    policies = f"[{', '.join(cell.policy.in_full() for cell in cells(found['verdicts'], 100))}]"
    names = {name: found[name] for name in ("task", "mode", "length")}
    return names | {"prompt": index, "policy_repr": digest([policies.encode()]), "budget": len(found["verdicts"]), "seed": 0}


def _answers(lm: Any, found: dict, example: Example) -> dict[str, Any]:
    todo, prompts = cells(found["verdicts"], len(example.compressed)), GRADERS[found["task"]]
    needs = [kvjax.methods.full(), *(cell.policy for cell in todo)]
    pre = kvjax.prefill(lm, list(example.compressed), needs=needs)
    tokens, gaps = _full(lm, pre, example, NEW_TOKENS[found["task"]])
    asked = measure(lm, Answering(prompts), [example], todo, needs=needs, prefills=Given(pre))
    ours = {row["policy"]: row for row, _ in asked}
    return {
        "scores": {cell.name: ours[cell.name]["score"] for cell in todo},
        "answers": {cell.name: ours[cell.name]["answer"] for cell in todo},
        "tokens": tokens,
        "gaps": [round(gap, 6) for gap in gaps],
        "full_score": float(prompts.grade(continuation(lm, example.prefix, tokens), example.references)),
    }


def _full(lm: Any, pre: Any, example: Example, new: int) -> tuple[list[int], list[float]]:
    """Greedy tokens of the full cache, and the gap between the two largest logits at each."""
    policy = kvjax.methods.full()
    cache = kvjax.extend(lm, kvjax.compress(pre, policy), list(example.fed), policy).cache
    out = kvjax.decode(lm, cache, policy, max_new_tokens=new, stop=(), return_logits=True)
    top = np.sort(np.asarray(out.logits[0]), -1)[:, -2:]
    return out.tokens[0].tolist(), (top[:, 1] - top[:, 0]).tolist()
