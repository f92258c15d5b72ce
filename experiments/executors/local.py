"""Processes of this machine: each is started anew, with an interpreter of its own, and has a pipe of its own.

None is forked: a forked process inherits the locks of JAX's threads, but not the threads.
"""

import multiprocessing
import signal
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from experiments.executors.executor import Work
from experiments.executors.lost import Lost, gathered
from experiments.executors.worker import Failure, Rows, Setup, measure
from experiments.rows import Row


def _serve(pipe: Connection, setup: Setup) -> None:
    """In the worker: measure what comes until nothing more can come."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's to hear
    while True:
        try:
            pipe.send(measure(setup, pipe.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the caller is gone
            return


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    pipe: Connection

    @classmethod
    def start(cls, setup: Setup) -> "_Worker":
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, setup), daemon=True)
        process.start()
        theirs.close()  # the worker has the only other end: its death is the pipe's end
        return cls(process, mine)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.pipe.close()


class _Processes:
    """Workers that are started when there is something to do, and again where one died."""

    def __init__(self, setup: Setup, count: int) -> None:
        self.count, self._setup = count, setup
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}

    def submit(self, work: Work) -> Hashable:
        while True:
            worker = self._idle.pop() if self._idle else _Worker.start(self._setup)
            self._busy[worker.pipe] = worker
            try:
                worker.pipe.send(work)
                return worker.pipe
            except OSError:  # it died while it had nothing to do
                self._busy.pop(worker.pipe).end()

    def wait(self) -> Sequence[tuple[Hashable, Rows | Failure | Lost]]:
        return [(pipe, self._received(self._busy.pop(pipe))) for pipe in wait(list(self._busy))]

    def _received(self, worker: _Worker) -> Rows | Failure | Lost:
        try:
            found = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            code = worker.process.exitcode
            worker.end()
            return Lost(f"exit code {code}")
        self._idle.append(worker)
        return found

    def end(self) -> None:
        for worker in (*self._idle, *self._busy.values()):
            worker.end()


@dataclass(frozen=True)
class Local:
    """So many processes of this machine; they share its cores, and each holds the model.

    Attributes:
        setup: the sweep.   workers: processes.
    """

    setup: Setup
    workers: int

    def rows(self, works: Iterable[Work]) -> Generator[tuple[Row, Row | None]]:
        """As `Executor.rows`; processes end with the iterator."""
        with ExitStack() as stack:
            processes = _Processes(self.setup, self.workers)
            stack.callback(processes.end)
            yield from gathered(processes, works)
