"""The study by request rate: measured times and bytes of a system in a simulated queue (`experiments.serving.queueing`)."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from experiments.serving.overlap import Line
from experiments.serving.queueing import Served, Server, arrivals, serve
from experiments.study.cell import Cell


@dataclass(frozen=True)
class Load:
    """What comes, and what holds it.

    Attributes:
        rates: requests a second.   memory: bytes of the device for caches, beside weights and one dense prompt.
        count: requests of a run.   seeds: runs, with arrivals of the seeds 0, 1, ..., the same for every system.
    """

    rates: tuple[float, ...]
    memory: int
    count: int = 200
    seeds: int = 20


@dataclass(frozen=True)
class Rate:
    """A system at one rate, simulated.

    Attributes:
        cell: of the largest batch that was measured.   rate: requests a second.   at_once: requests that memory holds.
        beyond: whether they are more than were measured together, so that a step's time goes on by its last slope.
        runs: one a seed.
    """

    cell: Cell
    rate: float
    at_once: int
    beyond: bool
    runs: tuple[Served, ...]

    @property
    def served(self) -> Served:
        """The means over runs."""
        return Served(*(statistics.fmean(getattr(run, of.name) for run in self.runs) for of in fields(Served)))

    @property
    def p95(self) -> tuple[float, float]:
        """The least and the most of the runs' 95th percentiles."""
        found = [run.first_p95 for run in self.runs]
        return min(found), max(found)


def rates(cells: Sequence[Cell], asked: Load) -> Iterator[Rate]:
    """Every system at every rate, but for those that `left_out` names."""
    for by_batch in _systems(cells):
        if not _reason(by_batch, asked):
            largest = by_batch[max(by_batch)]
            at_once = held(largest, asked.memory)
            for rate in asked.rates:
                machine = server(by_batch, at_once)
                runs = tuple(serve(arrivals(rate, asked.count, seed), machine) for seed in range(asked.seeds))
                yield Rate(largest, rate, at_once, at_once > largest.batch, runs)


def left_out(cells: Sequence[Cell], asked: Load) -> list[tuple[Cell, str]]:
    """Systems that cannot be simulated, and why."""
    reasons = [(by_batch[max(by_batch)], _reason(by_batch, asked)) for by_batch in _systems(cells)]
    return [(cell, reason) for cell, reason in reasons if reason]


def held(cell: Cell, memory: int) -> int:
    """Requests whose caches fit: ⌊memory / (cache bytes / batch)⌋."""
    return memory * cell.batch // cell.cache_bytes


def server(by_batch: dict[int, Cell], at_once: int) -> Server:
    """Prefill as measured alone; a step's time linear between the batches measured, and beyond the last by its slope."""
    sizes = sorted(by_batch)
    step = Line(tuple(sizes), tuple(by_batch[size].step for size in sizes))
    return Server(prefill=by_batch[1].first, step=step, new=by_batch[1].new, at_once=at_once)


def _systems(cells: Sequence[Cell]) -> list[dict[int, Cell]]:
    """The cells of each system, length and number of new tokens by batch."""
    found: dict[tuple, dict[int, Cell]] = {}
    for cell in cells:
        found.setdefault((cell.length, cell.policy_repr, cell.budget, cell.policy, cell.new), {})[cell.batch] = cell
    return list(found.values())


def _reason(by_batch: dict[int, Cell], asked: Load) -> str:
    """Why a system cannot be simulated; nothing where it can."""
    steps = [by_batch[size].step for size in sorted(by_batch)]
    if 1 not in by_batch or len(by_batch) < 2:
        return "was not measured alone and in a larger batch"
    if not all(cell.quiet for cell in by_batch.values()):
        return "was timed beside other work"
    if steps != sorted(steps):
        return "took longer a step in a smaller batch than in a larger one"
    return "" if held(by_batch[max(by_batch)], asked.memory) else "has a cache larger than the memory"
