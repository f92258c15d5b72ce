"""A run that is killed without warning, wherever it is, and started again has the weights of one that nobody disturbed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.train.child import FEW, STEPS
from tests.train.conftest import WHOLE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A whole run, whose programs the killed ones read."""
    folder = tmp_path_factory.mktemp("kills")
    process = start(folder / "whole", folder, keep_programs=True)
    complaint = process.communicate(timeout=600)[1]
    assert process.returncode == 0, complaint
    return folder


def start(out: Path, folder: Path, *names: str, keep_programs: bool = False) -> subprocess.Popen:
    """A run in a process group of its own; one that may be killed writes no program, of which half would be left."""
    least = "0" if keep_programs else "1e9"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "programs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": least}
    how = dict(cwd=ROOT, env=os.environ | cache, start_new_session=True, text=True)
    command = [sys.executable, "-m", "tests.train.child", str(out), *names]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **how)


def lines(out: Path) -> int:
    """Steps in the log."""
    path = out / "log.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def killed(process: subprocess.Popen, moment) -> bool:
    """Kill as soon as `moment()`; False where the run ended before."""
    while process.poll() is None:
        if moment():
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return process.returncode == -signal.SIGKILL
        time.sleep(1e-4)
    complaint = process.communicate()[1]
    assert process.returncode == 0, complaint
    return False


def torn(undisturbed: Path, name: str, *, kills: int) -> list[int]:
    """Kill a run at random moments, every other one while a checkpoint is written, then let it end: steps done at each kill."""
    out, draw, found = undisturbed / name, random.Random(name), []
    for number in range(kills):
        wanted = lines(out) + draw.randrange(1, max(2, STEPS // (kills + 2)))
        moment = lambda: lines(out) >= wanted  # noqa: B023, E731
        if number % 2:
            moment = lambda: lines(out) >= wanted and any(out.glob(".draft-*"))  # noqa: B023, E731
        if not killed(start(out, undisturbed), moment):
            break
        found.append(lines(out))
    process = start(out, undisturbed)
    complaint = process.communicate(timeout=600)[1]
    assert process.returncode == 0, complaint
    return found


def check(undisturbed: Path, name: str) -> None:
    """Weights and log to the bit."""
    assert (undisturbed / f"{name}.npz").read_bytes() == (undisturbed / "whole.npz").read_bytes()
    assert (undisturbed / name / "log.jsonl").read_bytes() == (undisturbed / "whole/log.jsonl").read_bytes()
    assert not list((undisturbed / name).glob(".*"))


def test_two_kills_change_no_bit(undisturbed):
    found = torn(undisturbed, "two", kills=2)
    assert len(found) == 2 and 0 < found[0] < found[1] + 3
    check(undisturbed, "two")


@pytest.mark.slow
def test_ten_kills_change_no_bit(undisturbed):
    assert len(torn(undisturbed, "ten", kills=10)) == 10
    check(undisturbed, "ten")


@pytest.mark.slow
@pytest.mark.parametrize("names", [("kvzap", "locret", "make_each_token_count", "dms"), ("lookahead_kv", "dmc"), tuple(WHOLE)])
def test_a_kill_in_the_run_of_each_learner_changes_no_bit(tmp_path, names):
    """Each run is killed once, at a random step; the next process finishes it, and is killed in the next one."""
    draw = random.Random("gates")
    whole, out = (tmp_path / name for name in ("whole", "killed"))
    process = start(whole, tmp_path, *names, keep_programs=True)
    complaint = process.communicate(timeout=600)[1]
    assert process.returncode == 0, complaint
    for name in names:
        wanted = draw.randrange(1, FEW - 2)
        waits = [f"{other}@{wanted + 1}" if other == name else other for other in names]
        assert killed(start(out, tmp_path, *waits), lambda: lines(out / name) >= wanted)  # noqa: B023
        assert wanted <= lines(out / name) < FEW
    process = start(out, tmp_path, *names)
    complaint = process.communicate(timeout=600)[1]
    assert process.returncode == 0, complaint
    assert (tmp_path / "killed.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    for name in names:
        assert (out / name / "log.jsonl").read_bytes() == (whole / name / "log.jsonl").read_bytes()
