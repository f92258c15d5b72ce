"""The sweep: policies x budgets x tasks x lengths x prompts, one prefill for each prompt however many cells it serves.

Cells of a prompt whose policies decode alike become rows of one batch, so a sweep decodes once where a loop would
decode once a cell. Rows go to the result file one by one; what is there already is not measured again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import jax

import kvjax
from experiments.policies import Named
from experiments.provenance import commit, machine, versions
from experiments.rows import RowFile
from experiments.tasks.chat import encode_plain
from experiments.tasks.example import Example
from experiments.tasks.text import Haystack

#: Raised whenever the same seed would give other prompts than before.
PROMPTS = 1


class Task(Protocol):
    """What a sweep runs: `experiments.tasks.answering.Answering`, or a module that measures in its own way (ppl)."""

    NAME: str
    MODES: tuple[str, ...]

    def examples(self, lm: Any, length: int, count: int, seed: int, **how: Any) -> Iterator[Example]: ...
    def measure(self, lm: Any, pre: Any, cache: Any, policy: Any, example: Example) -> list[dict[str, Any]]: ...
    def rows_at_once(self, lm: Any) -> int: ...


@dataclass(frozen=True)
class Plan:
    """What a sweep measures.

    Attributes:
        tasks: (task, question mode) pairs.
        lengths: context lengths in tokens.
        policies: the cells of every prompt; the full cache is added as the reference where it is missing.
        prompts, seed: prompts 0 .. prompts - 1 of the seed.
    """

    tasks: tuple[tuple[Task, str], ...]
    lengths: tuple[int, ...]
    policies: tuple[Named, ...]
    prompts: int
    seed: int

    @property
    def cells(self) -> tuple[Named, ...]:
        """The full cache, then the policies, each once."""
        reference = Named("full", 1.0, kvjax.methods.full())
        distinct = {(repr(cell.policy), cell.budget): cell for cell in (reference, *self.policies)}
        return tuple(distinct.values())

    @property
    def total(self) -> int:
        """Rows of the whole sweep."""
        return self.prompts * len(self.lengths) * len(self.tasks) * len(self.cells)


def identity(lm: Any, plan: Plan, text: Haystack) -> dict[str, Any]:
    """What all rows of one result file share."""
    dtype = str(lm.params["embed"]["weight"].dtype)
    return {"model": lm.name, "dtype": dtype, "seed": plan.seed, "prompts": f"{PROMPTS}:{text.digest}"}


def run(lm: Any, plan: Plan, text: Haystack, rows: RowFile, *, done: Callable[[int], None] = lambda count: None) -> int:
    """Measure every cell of `plan` that `rows` lacks and append it; returns how many were measured.

    Args:
        lm: the language model.
        plan: what to measure.
        text: where prompts are cut from.
        rows: the open result file, made with `identity(lm, plan, text)`.
        done: told the number of rows settled, measured or found in the file.

    Raises:
        ValueError: a length that the model, the haystack or a task cannot serve; before anything is measured.
        OSError: a row cannot be written.
    """
    haystack = encode_plain(lm, text.text)
    check(lm, plan, haystack)
    common = identity(lm, plan, text) | _origin(text)
    measured = 0
    for task, example in prompts(lm, plan, haystack):
        cells = [cell for cell in plan.cells if _key(example, cell, plan.seed) not in rows]
        done(len(plan.cells) - len(cells))
        for row in measure(lm, task, example, cells, needs=[cell.policy for cell in plan.cells]) if cells else ():
            rows.append(common | row)
            measured += 1
            done(1)
    return measured


def check(lm: Any, plan: Plan, haystack: Sequence[int]) -> None:
    """Build the first prompt of every length and task, and see that it fits the model's context."""
    for length in plan.lengths:
        for task, mode in plan.tasks:
            first = next(task.examples(lm, length, 1, plan.seed, haystack=haystack, mode=mode))
            needed = len(first.compressed) + first.room
            if needed > lm.decoder.max_positions:
                most = lm.decoder.max_positions
                raise ValueError(f"{task.NAME} at length {length} needs {needed} positions, the model has {most}")


def prompts(lm: Any, plan: Plan, haystack: Sequence[int]) -> Iterator[tuple[Task, Example]]:
    """All prompts with their tasks, index by index, so that a sweep stopped early has something of everything."""
    for index in range(plan.prompts):
        for length in plan.lengths:
            for task, mode in plan.tasks:
                how = dict(haystack=haystack, mode=mode, start=index)
                yield from ((task, example) for example in task.examples(lm, length, index + 1, plan.seed, **how))


def measure(lm: Any, task: Task, example: Example, cells: Sequence[Named], *, needs: Any) -> Iterator[dict[str, Any]]:
    """One row for each cell of one prompt, all from one prefill that records `needs`."""
    began = time.perf_counter()
    pre = jax.block_until_ready(kvjax.prefill(lm, list(example.compressed), needs=needs))
    prefill_seconds = time.perf_counter() - began
    for group in batches(cells, task.rows_at_once(lm)):
        for cell, row in zip(group, _answer(lm, task, pre, example, group), strict=True):
            yield _describe(example, cell) | {"seconds_prefill": prefill_seconds} | row


def batches(cells: Sequence[Named], size: int) -> Iterator[list[Named]]:
    """Cells that decode alike, in groups of at most `size` and of nearly equal size, since each size is a program.

    Budgets are data, so the cells of a policy that evicts while decoding share a batch too.
    """
    alike = lambda cell: repr((cell.policy.decoding(), cell.policy.encode, cell.policy.retrieve))  # noqa: E731
    for _, found in groupby(sorted(cells, key=alike), key=alike):
        group = list(found)
        step = -(-len(group) // -(-len(group) // size))
        yield from (group[i : i + step] for i in range(0, len(group), step))


def _answer(lm: Any, task: Task, pre: Any, example: Example, group: list[Named]) -> Iterator[dict[str, Any]]:
    caches, facts = [], []
    for cell in group:
        began = time.perf_counter()
        cache = jax.block_until_ready(kvjax.compress(pre, cell.policy))
        facts.append({"seconds_compress": time.perf_counter() - began} | _bytes(lm, pre, cache))
        caches.append(cache)
    batch = kvjax.stack(caches) if len(caches) > 1 else caches[0]
    began = time.perf_counter()
    grades = task.measure(lm, pre, batch, group[0].policy, example)
    spent = (time.perf_counter() - began) / example.room / len(group)
    for fact, grade in zip(facts, grades, strict=True):
        yield fact | grade | {"seconds_per_token": spent, "rows": len(group)}


def _bytes(lm: Any, pre: Any, cache: Any) -> dict[str, Any]:
    """What the compressed prompt occupies and what the whole one would, before room for new tokens is added."""
    decoder, length = lm.decoder, pre.lengths[0]
    heads = decoder.layers * decoder.heads
    full = 2 * heads * length * decoder.head_dim * pre.rows[0].k[0].dtype.itemsize
    kept = int(cache.lengths.sum())
    return {
        "prompt_tokens": length,
        "kept_slots": kept,
        "kept_share": kept / (heads * length),
        "allocated_bytes": cache.nbytes,
        "host_bytes": cache.host_nbytes,
        "full_bytes": full,
    }


def _describe(example: Example, cell: Named) -> dict[str, Any]:
    return {
        "task": example.task,
        "mode": example.mode,
        "length": example.length,
        "prompt": example.index,
        "policy": cell.name,
        "policy_repr": repr(cell.policy),
        "budget": cell.budget,
        **example.meta,
    }


def _key(example: Example, cell: Named, seed: int) -> tuple:
    return (example.task, example.mode, example.length, example.index, repr(cell.policy), cell.budget, seed)


def _origin(text: Haystack) -> dict[str, Any]:
    return {"text": text.source, "versions": versions(), "commit": commit(), "machine": machine()}
