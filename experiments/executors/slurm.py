"""Slurm's jobs through submitit; needs the extra `slurm`.

A job a prompt: it loads the model, measures the prompt and writes its rows into the folder, where the caller finds them. Compiled
programs are shared where JAX_COMPILATION_CACHE_DIR is a folder that all machines see.
"""

import time
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.executors.executor import Work
from experiments.executors.extras import require
from experiments.executors.lost import Lost, gathered
from experiments.executors.worker import Failure, Rows, Setup, measure
from experiments.rows import Row
from models.numbers import one_line

#: Seconds between two looks at the jobs.
_LOOK = 0.5


def options(text: str | None) -> dict[str, int | str]:
    """`"partition=gpu,timeout_min=60"` -> submitit's parameters; whole numbers are numbers.

    Raises:
        ValueError: a part that is no name=value.
    """
    found: dict[str, int | str] = {}
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        name, equals, value = part.partition("=")
        if not (name.isidentifier() and equals and value):
            raise ValueError(f"--slurm: {part!r} is no NAME=VALUE of submitit's, such as slurm_partition=gpu or timeout_min=60")
        found[name] = int(value) if value.isdecimal() else value
    return found


@dataclass
class _Jobs:
    """Jobs by their submitit handles; `executor` is submitit's."""

    setup: Setup
    count: int
    executor: Any

    def __post_init__(self) -> None:
        self._jobs: list[Any] = []

    def submit(self, work: Work) -> Hashable:
        self._jobs.append(self.executor.submit(measure, self.setup, work))
        return self._jobs[-1]

    def wait(self) -> Sequence[tuple[Hashable, Rows | Failure | Lost]]:
        while not (done := [job for job in self._jobs if job.done()]):
            time.sleep(_LOOK)
        self._jobs = [job for job in self._jobs if job not in done]
        return [(job, self._received(job)) for job in done]

    @staticmethod
    def _received(job: Any) -> Rows | Failure | Lost:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            return job.result()
        except (FailedJobError, UncompletedJobError) as error:  # what measuring raises is a Failure: this is the job's end
            return Lost(f"job {job.job_id}, {job.state}: {one_line(error)}")

    def end(self) -> None:
        for job in self._jobs:
            job.cancel(check=False)


@dataclass(frozen=True)
class Slurm:
    """So many jobs of Slurm at a time.

    Attributes:
        setup: the sweep.   workers: jobs at a time.   folder: that all machines see, for what jobs write.
        parameters: submitit's; `cluster="local"` starts processes here in place of Slurm's jobs.

    Raises:
        ImportError: submitit is not there; says how to have it.
    """

    setup: Setup
    workers: int
    folder: Path
    parameters: tuple[tuple[str, int | str], ...] = ()

    def __post_init__(self) -> None:
        require("slurm", "submitit", "submitit")

    def rows(self, works: Iterable[Work]) -> Generator[tuple[Row, Row | None]]:
        """As `Executor.rows`; jobs that are not done end with the iterator.

        Raises:
            ValueError: no Slurm here, or parameters that submitit does not take.
        """
        with ExitStack() as stack:
            jobs = _Jobs(self.setup, self.workers, self._executor())
            stack.callback(jobs.end)
            yield from gathered(jobs, works)

    def _executor(self) -> Any:
        import submitit

        given = dict(self.parameters)
        cluster = given.pop("cluster", "slurm")
        try:
            found = submitit.AutoExecutor(folder=self.folder, cluster=str(cluster))
            found.update_parameters(**{"name": "kvjax", "timeout_min": 24 * 60, **given})
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            raise ValueError(f"--executor slurm: {one_line(error)}; on a machine without Slurm take --executor local") from error
        return found
