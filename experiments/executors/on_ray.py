"""Ray's workers, on this machine or on a cluster that is there; needs the extra `ray`.

The address is Ray's own business (`RAY_ADDRESS`); without one it starts on this machine. Machines must have kvjax, the model and
the text, in the folder that the sweep was started in.
"""

import os
from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from experiments.executors.executor import Work
from experiments.executors.extras import require
from experiments.executors.lost import Lost, gathered
from experiments.executors.worker import Failure, Rows, Setup, measure
from experiments.provenance import ROOT
from experiments.rows import Row


@dataclass
class _Tasks:
    """A task a prompt; a worker process of Ray that has loaded the model keeps it for the next."""

    setup: Setup
    count: int
    _refs: list[Hashable] = field(default_factory=list)

    def __post_init__(self) -> None:
        import ray

        cards = ray.cluster_resources().get("GPU", 0)
        # Ray never gives a prompt away again by itself: who lost it would not be told.
        self._measure = ray.remote(num_cpus=1, num_gpus=1 if cards else 0, max_retries=0)(measure)

    def submit(self, work: Work) -> Hashable:
        self._refs.append(self._measure.remote(self.setup, work))
        return self._refs[-1]

    def wait(self) -> Sequence[tuple[Hashable, Rows | Failure | Lost]]:
        import ray

        done, self._refs = ray.wait(self._refs, num_returns=1)
        return [(ref, self._received(ref)) for ref in done]

    @staticmethod
    def _received(ref: Hashable) -> Rows | Failure | Lost:
        import ray

        try:
            return ray.get(ref)
        except ray.exceptions.RayError as error:  # what measuring raises is a Failure: this is the worker's or the machine's end
            return Lost(str(error).strip().splitlines()[0])

    def end(self) -> None:
        import ray

        for ref in self._refs:
            ray.cancel(ref, force=True)


@dataclass(frozen=True)
class Ray:
    """So many tasks of Ray at a time, each on a core of its own, and on a card of its own where there are cards.

    Attributes:
        setup: the sweep.   workers: tasks at a time.

    Raises:
        ImportError: Ray is not there; says how to have it.
    """

    setup: Setup
    workers: int

    def __post_init__(self) -> None:
        require("ray", "ray", "Ray")

    def rows(self, works: Iterable[Work]) -> Generator[tuple[Row, Row | None]]:
        """As `Executor.rows`; a Ray that was started here ends with the iterator."""
        import ray

        with ExitStack() as stack:
            if not ray.is_initialized():
                paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
                here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": self.workers, "include_dashboard": False}
                ray.init(**here, runtime_env={"env_vars": {"PYTHONPATH": paths}}, log_to_driver=False, logging_level="warning")
                stack.callback(ray.shutdown)
            tasks = _Tasks(self.setup, self.workers)
            stack.callback(tasks.end)
            yield from gathered(tasks, works)
