"""The sweep: policies x budgets x tasks x lengths x seeds x prompts, one prefill for each prompt however many cells it serves.

Cells of a prompt whose policies decode alike become rows of one batch, so a sweep decodes once where a loop would
decode once a cell. Rows go to the result file one by one; what is there already is not measured again.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import kvjax
from experiments import leaks, traces
from experiments.executors.executor import Executor, InProcess, Work
from experiments.measure import measure
from experiments.policies import Named
from experiments.prefills import Afresh
from experiments.provenance import commit, machine, versions
from experiments.rows import Found, RowFile
from experiments.tasks.example import Example, Read
from experiments.tasks.text import Haystack
from kvjax.compress.streaming import check_leaving, check_streaming
from kvjax.weights_mark import mark_of

#: Raised whenever the same seed would give other prompts than before.
PROMPTS = 1


class Task(Protocol):
    """What a sweep runs: `experiments.tasks.answering.Answering`, or a module that measures in its own way (ppl)."""

    NAME: str
    MODES: tuple[str, ...]

    def examples(self, lm: Any, length: int, count: int, seed: int, **how: Any) -> Iterator[Example]: ...
    def measure(self, lm: Any, cache: Any, policy: Any, reads: Sequence[Read]) -> list[dict[str, Any]]: ...
    def alike(self, example: Example) -> Hashable: ...
    def tokens(self, example: Example) -> tuple[int, int]: ...
    def rows_at_once(self, lm: Any, example: Example) -> int: ...


@dataclass(frozen=True)
class Plan:
    """What a sweep measures.

    Attributes:
        tasks: (task, question mode) pairs.
        lengths: context lengths in tokens.
        policies: the cells of every prompt; the full cache is added as the reference where it is missing.
        prompts, seeds: prompts 0 .. prompts - 1 of each seed.
        together: prompts of a task whose cells are decoded as one batch; a sweep that is killed loses as many.
    """

    tasks: tuple[tuple[Task, str], ...]
    lengths: tuple[int, ...]
    policies: tuple[Named, ...]
    prompts: int
    seeds: tuple[int, ...] = (0,)
    together: int = 1

    @property
    def cells(self) -> tuple[Named, ...]:
        """The full cache, then the policies, each once."""
        reference = Named("full", 1.0, kvjax.methods.full())
        distinct = {(cell.policy.in_full(), cell.budget): cell for cell in (reference, *self.policies)}
        return tuple(distinct.values())

    @property
    def total(self) -> int:
        """Rows of the whole sweep."""
        return sum(1 for _ in self.prompt_keys()) * len(self.cells)

    @property
    def titles(self) -> str:
        """The tasks with their question modes, where they have any."""
        return ", ".join(task.NAME if mode == "-" else f"{task.NAME} ({mode})" for task, mode in self.tasks)

    def prompt_keys(self) -> Iterator[tuple[int, int, int, Task, str]]:
        """(index, seed, length, task, mode) of every prompt, index by index: a sweep stopped early has something of everything."""
        for (index,), seed, length, task, mode in self._several(1):
            yield index, seed, length, task, mode

    def _several(self, size: int) -> Iterator[tuple[range, int, int, Task, str]]:
        """(indices, seed, length, task, mode) of at most `size` prompts of one task at a time."""
        for first in range(0, self.prompts, size):
            indices = range(first, min(first + size, self.prompts))
            for seed in self.seeds:
                for length in self.lengths:
                    yield from ((indices, seed, length, task, mode) for task, mode in self.tasks)

    def missing(self, rows: Found, prompt: tuple[int, int, int, Task, str]) -> list[Named]:
        """The cells of a prompt that `rows` lacks."""
        return [cell for cell in self.cells if _key(cell, prompt) not in rows]

    def works(self, rows: Found, *, traced: bool) -> Iterator[Work]:
        """The prompts that `rows` lacks something of, in order, `together` of them at a time; traces are those of prompt 0."""
        cells = self.cells
        for indices, seed, length, task, mode in self._several(self.together):
            found: dict[tuple[int, ...], list[int]] = {}  # the cells that are lacking, and the prompts that lack just these
            for index in indices:
                prompt = (index, seed, length, task, mode)
                lacking = tuple(i for i, cell in enumerate(cells) if _key(cell, prompt) not in rows)
                found.setdefault(lacking, []).append(index)
            for lacking, alike in found.items():
                if lacking:
                    yield Work(tuple(alike), seed, length, self.tasks.index((task, mode)), lacking, trace=traced and 0 in alike)


def _key(cell: Named, prompt: tuple[int, int, int, Task, str]) -> tuple:
    """The row's key (`experiments.rows.KEY`)."""
    index, seed, length, task, mode = prompt
    return task.NAME, mode, length, index, cell.policy.in_full(), cell.budget, seed


def identity(lm: Any, text: Haystack) -> dict[str, Any]:
    """What all rows of one result file share: the model's name, dtype and mark of its weights, the haystack."""
    dtype, weights = str(lm.params["embed"]["weight"].dtype), int(mark_of(lm.params))
    return {"model": lm.name, "dtype": dtype, "prompts": f"{PROMPTS}:{text.digest}", "weights": weights}


def run(
    lm: Any, plan: Plan, text: Haystack, rows: RowFile, *,
    prefills: Any = Afresh(), traced: RowFile | None = None, executor: Executor | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> int:  # fmt: skip
    """Measure every cell of `plan` that `rows` lacks and append it; returns how many were measured.

    Args:
        lm: the language model.
        plan: what to measure.
        text: where prompts are cut from.
        rows: the open result file, made with `identity(lm, text)`.
        prefills: Afresh(), or Kept(folder): prefilled prompts that are there are read, others are written there.
        traced: an open file for the traces of prompt 0 (`experiments.traces`); None for none.
        executor: who measures (`experiments.executors`); None for this process, with `prefills`.
        done: told the number of rows measured.

    Raises:
        ValueError: a length that the model, the haystack or a task cannot serve, or a data set that is not the one `rows` were
            measured on; before anything is measured.
        OSError: a row cannot be written.
    """
    here = InProcess(lm, plan, text, prefills)
    check(lm, plan, here.ids, rows)
    executor = here if executor is None else executor
    count = 0
    with closing(executor.rows(plan.works(rows, traced=traced is not None))) as found:
        for row, trace in found:
            if trace is not None:
                traces.keep(traced, row, trace)
            rows.append(row)
            count += 1
            done(1)
    return count


def measured(here: InProcess, work: Work) -> Iterator[tuple[dict[str, Any], Any]]:
    """(row, trace) of each cell of a work's prompts, the row with all that repeats it; without `work.trace` the second is None."""
    (task, mode), cells = here.plan.tasks[work.task], here.plan.cells
    examples = [make(here.lm, (index, work.seed, work.length, task, mode), here.ids) for index in work.indices]
    for example in examples:
        _check_room(here.lm, example)
        if example.meta.get("data"):  # of the haystack `check` has seen all
            leaks.refuse(cells, here.lm.decode([*example.compressed, *example.fed]), f"prompt {example.index} of {task.NAME}")
    common = identity(here.lm, here.text) | origin(here.text) | {"seed": work.seed}
    behind = {(cell.policy.in_full(), cell.budget): _behind(cell) for cell in cells}
    how = dict(needs=[cell.policy for cell in cells], prefills=here.prefills, trace=work.trace)
    for row, trace in measure(here.lm, task, examples, [cells[i] for i in work.cells], **how):
        yield common | row | behind[row["policy_repr"], row["budget"]], trace


def check(lm: Any, plan: Plan, haystack: Sequence[int], rows: Found) -> None:
    """See that the first and the last prompt of every length and task fit the model, the policies and the data of `rows`.

    Where prompts are cut from the haystack, no artefact behind the policies may have read it.
    """
    haystacks = False
    for length in plan.lengths:
        for task, mode in plan.tasks:
            for index in sorted({0, plan.prompts - 1}):
                found = make(lm, (index, plan.seeds[0], length, task, mode), haystack)
                _check_room(lm, found)
                for cell in plan.cells:
                    _check_policy(lm, cell, found.compressed)
                rows.expect(found.task, found.meta.get("data"))
                haystacks |= not found.meta.get("data")
    if haystacks:
        leaks.refuse(plan.cells, lm.decode(list(haystack)), "the text that this sweep cuts its prompts from")


def _check_room(lm: Any, example: Example) -> None:
    """Raise ValueError for a prompt that with all that follows it is longer than the model's positions."""
    needed, most = len(example.compressed) + example.room, lm.decoder.max_positions
    if needed > most:
        which = f"prompt {example.index} of {example.task} at length {example.length}"
        raise ValueError(f"{which} needs {needed} positions, the model has {most}: take a shorter --lengths, or another model")


def _check_policy(lm: Any, cell: Named, ids: Sequence[int]) -> None:
    try:
        cell.policy.check(lm.decoder, len(ids))
        if cell.policy.select.leaves:
            check_streaming(lm.decoder, [ids], cell.policy)
            check_leaving(lm.decoder, cell.policy, cell.policy.attention)
    except ValueError as error:
        raise ValueError(f"{cell.name} at budget {cell.budget}: {error}") from error


def make(lm: Any, prompt: tuple[int, int, int, Task, str], haystack: Sequence[int]) -> Example:
    """One prompt of the plan.

    Raises:
        ValueError: the task has no prompt of that index.
    """
    index, seed, length, task, mode = prompt
    found = next(iter(task.examples(lm, length, index + 1, seed, haystack=haystack, mode=mode, start=index)), None)
    if found is None:
        raise ValueError(f"{task.NAME} has no prompt {index} at length {length}: ask for fewer --prompts")
    return found


def _behind(cell: Named) -> dict[str, Any]:
    """What the artefacts behind a cell read, where there are any."""
    found = leaks.read_by(cell.policy)
    return {"artefacts": found} if found else {}


def origin(text: Haystack) -> dict[str, Any]:
    """What a row says of where and by what it was measured."""
    return {"text": text.source, "split": text.split, "versions": versions(), "commit": commit(), "machine": machine()}
