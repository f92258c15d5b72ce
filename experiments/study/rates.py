"""The study by request rate: measured times and bytes of a system in a simulated queue (`experiments.serving.queueing`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from experiments.serving.overlap import Line
from experiments.serving.queueing import Served, Server, arrivals, serve
from experiments.study.cell import Cell


@dataclass(frozen=True)
class Load:
    """What comes, and what holds it.

    Attributes:
        rates: requests a second.   memory: bytes of the device for caches, beside weights and one dense prompt.
        count: requests of a run.   seed: of their arrivals, the same for every system.
    """

    rates: tuple[float, ...]
    memory: int
    count: int = 200
    seed: int = 0


@dataclass(frozen=True)
class Rate:
    """A system at one rate, simulated.

    Attributes:
        cell: of the largest batch that was measured.   rate: requests a second.   at_once: requests that memory holds.
        beyond: whether they are more than were measured together, so that a step's time goes on by its last slope.
    """

    cell: Cell
    rate: float
    at_once: int
    beyond: bool
    served: Served


def rates(cells: Sequence[Cell], asked: Load) -> Iterator[Rate]:
    """Every system that was measured alone and in a larger batch, at every rate; one that memory does not hold is left out."""

    def system(cell: Cell) -> tuple:
        return cell.length, cell.policy_repr, cell.budget, cell.policy, cell.new

    order = list(dict.fromkeys(map(system, cells)))
    for _, found in groupby(sorted(cells, key=lambda cell: order.index(system(cell))), key=system):
        by_batch = {cell.batch: cell for cell in found}
        largest = by_batch[max(by_batch)]
        at_once = held(largest, asked.memory)
        if 1 in by_batch and len(by_batch) > 1 and at_once:
            for rate in asked.rates:
                served = serve(arrivals(rate, asked.count, asked.seed), server(by_batch, at_once))
                yield Rate(largest, rate, at_once, at_once > largest.batch, served)


def held(cell: Cell, memory: int) -> int:
    """Requests whose caches fit: ⌊memory / (cache bytes / batch)⌋."""
    return memory * cell.batch // cell.cache_bytes


def server(by_batch: dict[int, Cell], at_once: int) -> Server:
    """Prefill as measured alone; a step's time linear between the batches measured, and beyond the last by its slope."""
    sizes = sorted(by_batch)
    step = Line(tuple(sizes), tuple(by_batch[size].step for size in sizes))
    return Server(prefill=by_batch[1].first, step=step, new=by_batch[1].new, at_once=at_once)
