"""Prompts on their way through workers that may die: as many as there are workers, each lost one once more, none twice."""

from collections import deque
from collections.abc import Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiments.executors.executor import Work
from experiments.executors.worker import Failure, Rows
from experiments.rows import Row

#: Times that a prompt is given to a worker before it is given up.
ATTEMPTS = 3


@dataclass(frozen=True)
class Lost:
    """The worker died, with what it had measured of the prompt."""

    reason: str


class Workers(Protocol):
    """Processes somewhere, each of which takes a prompt at a time."""

    count: int

    def submit(self, work: Work) -> Hashable:
        """Give it to a worker that has nothing to do; returns what `wait` names it by."""
        ...

    def wait(self) -> Sequence[tuple[Hashable, Rows | Failure | Lost]]:
        """What has ended since, one at least."""
        ...


def gathered(workers: Workers, works: Iterable[Work]) -> Generator[tuple[Row, Row | None]]:
    """Rows of all prompts, prompt by prompt as they end.

    Raises:
        OSError: prompts whose workers died `ATTEMPTS` times, once all others are done.
        ValueError, OSError, ImportError, MemoryError: as measuring raised it.
    """
    coming, again = iter(works), deque()
    under_way: dict[Hashable, tuple[Work, int]] = {}
    given_up: list[tuple[Work, str]] = []
    while True:
        while len(under_way) < workers.count:
            work, attempt = again.popleft() if again else (next(coming, None), 1)
            if work is None:
                break
            under_way[workers.submit(work)] = (work, attempt)
        if not under_way:
            break
        for name, found in workers.wait():
            work, attempt = under_way.pop(name)
            if isinstance(found, Failure):
                raise found.error()
            if not isinstance(found, Lost):
                yield from found
            elif attempt < ATTEMPTS:
                again.append((work, attempt + 1))
            else:
                given_up.append((work, found.reason))
    if given_up:
        raise OSError(_told(given_up))


def _told(given_up: list[tuple[Work, str]]) -> str:
    work, reason = given_up[0]
    count, last = sum(len(lost.indices) for lost, _ in given_up), ", ".join(map(str, work.indices))
    which = f"{count} prompts are not measured: their workers died {ATTEMPTS} times each, the last of"
    where = f"prompt {last}, seed {work.seed}, length {work.length} by: {reason}"
    return f"{which} {where}; all others are written, the same command measures these once more"
