"""A run's folder: what it is, its newest checkpoints, its log; each file is there whole or not at all.

FOLDER/run.json         what has to be the same for a run to go on
FOLDER/step-0000050/    the state after 50 steps: an orbax checkpoint
FOLDER/log.jsonl        a line a step
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from kvjax.artefacts import tables
from kvjax.train.line import Line
from kvjax.train.step import TrainState

#: Checkpoints that are kept; the one before the newest is for those who doubt the newest.
KEPT = 2
#: What the names of unfinished text files begin with.
_TEXT = ".text-"


@dataclass(frozen=True)
class Checkpoints:
    """The folder of one run."""

    folder: Path

    def begin(self, facts: Mapping[str, object], *, resume: bool) -> None:
        """Make the folder for a run of these facts, or take it up.

        Raises:
            FileExistsError: it holds a run, or something else, and `resume` is not asked for.
            ValueError: it holds a run of other facts, all of which are named.
        """
        known = self.folder / "run.json"
        if known.is_file():
            self._take_up(json.loads(known.read_text()), json.loads(json.dumps(facts)), resume)
        elif self.folder.exists() and any(not path.name.startswith(_TEXT) for path in self.folder.iterdir()):
            raise FileExistsError(f"{self.folder} exists and holds no run: name a new folder")
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            for leftover in self.folder.iterdir():  # of a process that was killed before it had written `run.json`
                leftover.unlink()
            _write_text(known, json.dumps(facts, indent=1) + "\n")

    def _take_up(self, theirs: dict[str, object], mine: dict[str, object], resume: bool) -> None:
        if not resume:
            raise FileExistsError(f"{self.folder} holds a run already: go on with it (resume), or name a new folder")
        differ = [
            f"{name}: {theirs.get(name)!r} there, {mine.get(name)!r} asked" for name in mine if mine[name] != theirs.get(name)
        ]
        if differ:
            raise ValueError(f"{self.folder} holds another run ({'; '.join(differ)}): ask for the same, or name a new folder")
        for leftover in self.folder.glob(".*"):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def steps(self) -> list[int]:
        """Steps after which there is a checkpoint, ascending."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))

    def path(self, step: int) -> Path:
        """Where the state after `step` steps is."""
        return self.folder / f"step-{step:07d}"

    def save(self, state: TrainState) -> Path:
        """Write a state under another name, rename it, and forget all but the newest."""
        path = self.path(int(state.step))
        draft = Path(tempfile.mkdtemp(dir=self.folder, prefix=".draft-"))
        tables.write(draft / path.name, _named(state))
        os.replace(draft / path.name, path)
        draft.rmdir()
        for old in self.steps()[:-KEPT]:
            gone = self.path(old).rename(self.folder / f".old-{old}")
            shutil.rmtree(gone)
        return path

    def load(self, like: TrainState) -> TrainState:
        """The newest state; `like` has its shapes. Without a checkpoint, `like` itself."""
        steps = self.steps()
        if not steps:
            return like
        found = tables.read(self.path(steps[-1]), _named(like))
        return jax.tree.unflatten(jax.tree.structure(like), [jax.numpy.asarray(found[name]) for name in _named(like)])

    def log(self, line: Line) -> None:
        """Add a line."""
        with open(self.folder / "log.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, before: int) -> list[Line]:
        """The lines of steps before `before`; those after it, and a half one, are taken out of the file."""
        path = self.folder / "log.jsonl"
        found = path.read_text().splitlines(keepends=True) if path.is_file() else []
        whole = [json.loads(line) for line in found if line.endswith("\n")]
        kept = [line for line in whole if line["step"] < before]
        _write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
        return kept


def _named(state: TrainState) -> dict[str, np.ndarray]:
    return {f"{i:04d}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(state))}


def _write_text(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=_TEXT, delete_on_close=False) as draft:
        draft.write(text)
        draft.flush()
        os.replace(draft.name, path)
