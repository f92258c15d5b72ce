"""The real `kvjax sweep`, killed at 20 random moments and started again, writes the file that an undisturbed one writes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from experiments.rows import key
from experiments.traces import beside
from tests.conftest import toy_config
from tests.experiments.conftest import MEASURED, TEXT, byte_tokenizer, lines
from tests.models.conftest import tensors  # noqa: F401  a fixture

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
KILLS = 20
WORDS = "--tasks needle,ppl --lengths 420 --policies streaming_llm,keydiff --budgets 0.5,0.25 --prompts 4"
CELLS = 5 * 2 * 4  # of a prompt, tasks, prompts


@dataclass(frozen=True)
class Command:
    """The sweep as another process, in a process group of its own; `programs` is a folder of compiled programs."""

    model: Path
    text: Path
    programs: Path

    def start(self, out: Path, *, keep_programs: bool = False) -> subprocess.Popen:
        words = [*WORDS.split(), "--model", self.model, "--text", self.text, "--out", out]
        least = "0" if keep_programs else "1e9"  # seconds; a killed run reads programs, it must not leave half of one
        cache = {"JAX_COMPILATION_CACHE_DIR": str(self.programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": least}
        how = dict(cwd=ROOT, env=os.environ | cache | {"JAX_PLATFORMS": "cpu"}, start_new_session=True, text=True)
        command = [sys.executable, "-m", "experiments", "sweep", *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **how)

    def finish(self, out: Path, **how: bool) -> None:
        check(self.start(out, **how))


@pytest.fixture
def command(tmp_path: Path, tensors: Callable) -> Command:  # noqa: F811
    """A tiny random model, saved as anybody's checkpoint is."""
    model, text = tmp_path / "model", tmp_path / "text.txt"
    model.mkdir()
    config = toy_config(vocab_size=257, num_hidden_layers=2, architectures=["LlamaForCausalLM"])
    (model / "config.json").write_text(json.dumps(config))
    save_file(tensors(config, 1), model / "model.safetensors")
    byte_tokenizer().inner.save_pretrained(model)
    text.write_text(TEXT)
    return Command(model, text, tmp_path / "programs")


def check(process: subprocess.Popen) -> None:
    complaint = process.communicate(timeout=300)[1]
    assert process.returncode == 0, complaint


def size(out: Path) -> int:
    """Bytes of rows and traces."""
    return sum(file.stat().st_size for file in (out, beside(out)) if file.is_file())


def kill(process: subprocess.Popen, moment: Callable[[], bool]) -> bool:
    """Kill the process and its children without warning as soon as `moment()`; False where it ended before."""
    while process.poll() is None:
        if moment():
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return process.returncode == -signal.SIGKILL
        time.sleep(1e-4)
    check(process)
    return False


def after(seconds: float) -> Callable[[], bool]:
    end = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end


def torn(command: Command, folder: Path, *, seconds: float, total: int) -> list[tuple[Path, list[int]]]:
    """Files of sweeps killed 20 times in all and then left alone, each with the rows it had after each kill."""
    draw, made, kills = random.Random(4), [], 0
    while kills < KILLS:
        out, found = folder / f"{len(made)}.jsonl", []
        made.append((out, found))
        ended = False
        while kills < KILLS and not ended:
            process = command.start(out)
            if kills % 2:  # while it writes: when so many bytes are on the disk
                at = size(out)
                wanted = at + max(0, draw.random() * (total - at))
                ended = not kill(process, lambda: size(out) > wanted)  # noqa: B023
            else:  # whatever it does: imports, prefill, decoding
                ended = not kill(process, after(draw.uniform(0, seconds)))
            if not ended:
                kills += 1
                found.append(out.read_bytes().count(b"\n") if out.is_file() else 0)
        command.finish(out)
    return made


def same(mine: Path, other: Path) -> None:
    """Row for row and in the same order, all but what is measured; logits of a smaller batch may round differently."""
    for file, undisturbed in ((mine, other), (beside(mine), beside(other))):
        for one, two in zip(lines(file), lines(undisturbed), strict=True):
            assert one.pop("nll", 0.0) == pytest.approx(two.pop("nll", 0.0), abs=1e-5)
            assert without_times(one) == without_times(two)


def without_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in (*MEASURED, "rows")}


def test_twenty_kills_change_nothing(command, tmp_path):
    whole, warm = tmp_path / "whole.jsonl", tmp_path / "warm.jsonl"
    command.finish(whole, keep_programs=True)
    began = time.perf_counter()
    command.finish(warm)
    seconds = time.perf_counter() - began
    same(warm, whole)
    made = torn(command, tmp_path, seconds=seconds, total=size(whole))
    rows = [count for _, found in made for count in found]
    print(f"undisturbed: {seconds:.1f} s; rows after each kill: {[found for _, found in made]}")
    assert len(rows) == KILLS and any(count == 0 for count in rows)
    assert any(count % 5 for count in rows), "no kill came between the cells of a prompt"
    for out, _ in made:
        cells = [key(row) for row in lines(out)]
        assert len(cells) == len(set(cells)) == CELLS
        same(out, whole)
