"""How a long calibration reports what it has done, and keeps it."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.files import write_atomically

Tables = dict[str, np.ndarray]


class Work:
    """Reports nothing and keeps nothing."""

    def report(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` steps of a stage are behind us."""

    def progress(self, stage: str) -> Callable[[int, int], None]:
        """`report` of one stage, as the calibrations call it: (done, total)."""
        return partial(self.report, stage)

    def keep(self, name: str, asked: Mapping[str, Any], make: Callable[[], Tables]) -> Tables:
        """The tables of one part; `asked` is all that they depend on."""
        del name, asked
        return make()


class Resumable(Work):
    """Shows a bar for each stage, and keeps every finished part in a folder until the whole is done."""

    def __init__(self, folder: Path, bar: Any) -> None:
        self.folder, self.bar, self.lines = folder, bar, {}

    def report(self, stage: str, done: int, total: int) -> None:
        if stage not in self.lines:
            self.lines[stage] = self.bar.add_task(stage, total=total)
        self.bar.update(self.lines[stage], completed=done)

    def keep(self, name: str, asked: Mapping[str, Any], make: Callable[[], Tables]) -> Tables:
        """The part as a former run left it if that run asked the same; else made, and written whole or not at all."""
        key = hashlib.sha256(json.dumps([name, dict(asked)], sort_keys=True).encode()).hexdigest()[:12]
        path = self.folder / f"{name}-{key}.npz"
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _packed(make()))
        with np.load(path) as found:
            return dict(found)

    def finish(self) -> None:
        """Drop the parts: the artefact has them all."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _packed(tables: Tables) -> bytes:
    from io import BytesIO

    into = BytesIO()
    np.savez(into, **tables)
    return into.getvalue()
