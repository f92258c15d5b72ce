"""Who measures a sweep changes nothing in its rows, and whoever dies loses its prompt alone."""

import importlib.util
import json
import multiprocessing
import random
import signal
import sys
import threading
import time
from contextlib import chdir, suppress
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import psutil
import pytest
from safetensors.numpy import save_file

import models
from experiments import sweep, traces
from experiments.executors import Setup, Work, gathered, on_ray
from experiments.executors import slurm as on_slurm
from experiments.executors.executor import InProcess
from experiments.executors.local import Local
from experiments.executors.lost import Lost
from experiments.executors.worker import Failure
from experiments.row_checks import trace
from experiments.rows import RowFile, key
from experiments.tasks.text import haystack
from tests.conftest import toy_config
from tests.experiments.conftest import MEASURED, TEXT, byte_tokenizer, lines
from tests.models.conftest import _tensors as tensors


class Scripted:
    """Workers that die, fail or end in an order drawn from a seed; rows are the prompt and the cell."""

    def __init__(self, count: int, seed: int, dies, fails=lambda work: None) -> None:
        self.count, self._draw, self._dies, self._fails = count, random.Random(seed), dies, fails
        self.given: list[Work] = []
        self._busy: list[int] = []

    def submit(self, work: Work) -> int:
        assert len(self._busy) < self.count
        self.given.append(work)
        self._busy.append(len(self.given) - 1)
        return self._busy[-1]

    def wait(self):
        ended = self._draw.sample(self._busy, self._draw.randint(1, len(self._busy)))
        self._busy = [x for x in self._busy if x not in ended]
        return [(x, self._of(self.given[x], self.given[: x + 1].count(self.given[x]))) for x in ended]

    def _of(self, work: Work, attempt: int):
        if failure := self._fails(work):
            return failure
        if self._dies(work, attempt):
            return Lost("killed")
        return [({"prompt": index, "cell": i}, None) for index in work.indices for i in work.cells]


WORKS = [Work((index,), 0, 420, 0, tuple(range(index % 3 + 1))) for index in range(20)]


@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.parametrize("seed", range(5))
def test_whoever_dies_nothing_is_lost_or_doubled(count, seed):
    chosen = random.Random(seed).sample(range(20), 8)
    workers = Scripted(count, seed, dies=lambda work, attempt: work.indices[0] in chosen and attempt < 3)
    found = [(row["prompt"], row["cell"]) for row, _ in gathered(workers, iter(WORKS))]
    assert sorted(found) == [(index, i) for work in WORKS for index in work.indices for i in work.cells]
    assert len(workers.given) == 20 + 2 * 8  # the others were measured once


def test_a_prompt_that_kills_its_workers_is_given_up_after_all_others():
    workers, found = Scripted(3, 0, dies=lambda work, attempt: work.indices[0] in (4, 9)), []
    with pytest.raises(OSError, match="2 prompts are not measured: .*3 times each.*length 420 by: killed"):
        for row, _ in gathered(workers, WORKS):
            found.append(row["prompt"])
    assert set(found) == set(range(20)) - {4, 9}
    assert [workers.given.count(WORKS[i]) for i in (4, 9, 0)] == [3, 3, 1]


def test_what_measuring_raises_ends_the_sweep():
    said = {"ValueError": (ValueError, "too short"), "KeyError": (RuntimeError, "a worker failed:\nTraceback")}
    for kind, (raised, message) in said.items():
        failure = Failure(kind, "too short", "Traceback ...")
        workers = Scripted(2, 0, dies=lambda *_: False, fails=lambda work: failure if work.indices == (5,) else None)  # noqa: B023
        with pytest.raises(raised, match=message):
            list(gathered(workers, WORKS))


def test_parameters_of_slurm():
    assert on_slurm.options("slurm_partition=gpu, timeout_min=60") == {"slurm_partition": "gpu", "timeout_min": 60}
    assert on_slurm.options(None) == {}
    with pytest.raises(ValueError, match="'gpu' is no NAME=VALUE"):
        on_slurm.options("gpu")


@pytest.mark.parametrize(
    ("module", "make", "reason"),
    [
        ("ray", partial(on_ray.Ray, workers=2), r"--executor ray needs Ray: pip install .*-e '.\[ray\]', or take --executor local"),
        ("submitit", partial(on_slurm.Slurm, workers=2, folder=Path()), r"--executor slurm needs submitit: .*-e '.\[slurm\]'"),
    ],
)
def test_an_extra_that_is_missing_is_named(monkeypatch, setup, module, make, reason):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=reason):
        make(setup)


def test_the_command_refuses_in_a_line(cli, haystack_file, tmp_path):
    words = f"sweep --model toy --policies keydiff --budgets 0.5 --tasks ppl --lengths 420 --text {haystack_file}".split()
    code, _, complaint = cli(*words, "--out", tmp_path / "rows.jsonl", "--slurm", "timeout_min=5")
    assert code == 2 and "--slurm is for --executor slurm" in complaint
    assert cli(*words, "--out", tmp_path / "rows.jsonl", "--workers", 0)[0] == 2


@pytest.fixture(scope="module")
def setup(tmp_path_factory) -> Setup:
    """A tiny random model, saved as anybody's checkpoint is, and a text; paths as somebody types them."""
    folder = tmp_path_factory.mktemp("sweep")
    config = toy_config(vocab_size=257, num_hidden_layers=2, architectures=["LlamaForCausalLM"])
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    save_file(tensors(config, 1), folder / "model" / "model.safetensors")
    byte_tokenizer().inner.save_pretrained(folder / "model")
    (folder / "text.txt").write_text(TEXT)
    with chdir(folder):
        lm, text = models.load("model", dtype="float32"), haystack(Path("text.txt"))
    words = ("model", "float32", "text.txt", "ppl", "unseen", "420", "keydiff", "0.5,0.25", 2, "0", 1, None)
    return Setup(str(folder), *words, tuple(sweep.identity(lm, text).items()))


@pytest.fixture(scope="module")
def here(setup) -> InProcess:
    with chdir(setup.folder):
        return setup.ready()


def go(here: InProcess, path: Path, **how) -> int:
    """The sweep into `path` and its traces."""
    shared = sweep.identity(here.lm, here.text)
    with RowFile(path, shared) as rows, RowFile(traces.beside(path), shared, trace) as traced:
        return sweep.run(here.lm, here.plan, here.text, rows, traced=traced, **how)


@pytest.fixture(scope="module")
def alone(here, tmp_path_factory) -> Path:
    """What this process measures."""
    path = tmp_path_factory.mktemp("alone") / "rows.jsonl"
    assert go(here, path) == here.plan.total == 6
    return path


def measured(path: Path) -> list[dict]:
    return sorted(({k: v for k, v in row.items() if k not in MEASURED} for row in lines(path)), key=lambda row: str(key(row)))


def same(mine: Path, other: Path) -> None:
    """Row for row, to the last bit of what is no time."""
    for one, two in ((mine, other), (traces.beside(mine), traces.beside(other))):
        assert measured(one) == measured(two)


def processes(*, named: str) -> list[psutil.Process]:
    """Those that this process started, and those that they did, by what their command line says."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [process] if named in " ".join(process.cmdline()) else []
    return found


def children() -> list[psutil.Process]:
    """Those that `Local` started; joblib keeps processes of its own for minutes, and they are no spawned ones."""
    started = [child for child in multiprocessing.active_children() if isinstance(child, SpawnProcess)]
    return [psutil.Process(child.pid) for child in started if psutil.pid_exists(child.pid)]


class Killer(threading.Thread):
    """Kills one of those that `find` gives, once it has been seen for half a second."""

    def __init__(self, find) -> None:
        super().__init__(daemon=True)
        self._find, self.killed, self._over = find, 0, threading.Event()

    def run(self) -> None:
        seen: dict[int, float] = {}
        while not self.killed and not self._over.wait(0.05):
            for process in self._find():
                if time.monotonic() - seen.setdefault(process.pid, time.monotonic()) > 0.5:
                    process.send_signal(signal.SIGKILL)
                    self.killed = process.pid
                    return

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self.join()


def extra(name: str):
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def on_jobs(setup: Setup, folder: Path) -> on_slurm.Slurm:
    return on_slurm.Slurm(setup, 2, folder, (("cluster", "local"), ("timeout_min", 5)))


EXECUTORS = [
    pytest.param(lambda setup, folder: Local(setup, 2), children, id="local"),
    pytest.param(on_jobs, partial(processes, named="submitit.core._submit"), id="slurm", marks=extra("submitit")),
    pytest.param(
        lambda setup, folder: on_ray.Ray(setup, 2), partial(processes, named="ray::measure"), id="ray", marks=extra("ray")
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "find"), EXECUTORS)
def test_a_worker_is_killed_and_the_rows_are_those_of_one_process(make, find, setup, here, alone, tmp_path):
    """A worker is killed at its first prompt, which is measured once more."""
    path = tmp_path / "rows.jsonl"
    with Killer(find) as killer:
        assert go(here, path, executor=make(setup, tmp_path / "jobs")) == here.plan.total
    assert killer.killed
    same(path, alone)
    assert not find()


@pytest.mark.slow
def test_the_command_goes_on_where_a_sweep_was_and_ends_its_workers(setup, here, alone, tmp_path, monkeypatch, capsys):
    from experiments import cli

    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(alone.read_bytes().splitlines(keepends=True)[:1]))
    monkeypatch.chdir(setup.folder)
    words = "sweep --model model --text text.txt --tasks ppl --lengths 420 --policies keydiff --budgets 0.5,0.25 --prompts 2"
    assert cli.main([*words.split(), "--workers", "2", "--executor", "local", "--out", str(path)]) == 0
    assert "5 rows measured, 1 found" in capsys.readouterr().out and not children()
    for one, two in zip(measured(path), measured(alone), strict=True):  # prompt 0 was measured in two batches
        assert one.pop("nll") == pytest.approx(two.pop("nll"), abs=1e-5)
        assert {**one, "rows": 0} == {**two, "rows": 0}


@pytest.mark.slow
def test_a_worker_says_what_went_wrong(setup, here, tmp_path):
    other = Setup(**{**vars(setup), "identity": (("model", "another"),)})
    with pytest.raises(ValueError, match="give all machines the same model and text"):
        go(here, tmp_path / "rows.jsonl", executor=Local(other, 1))
    assert not children()
