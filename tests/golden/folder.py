"""What lies in a golden folder: models, and the cells recorded for each."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

DECODING = "decoding_"


@dataclass(frozen=True)
class Cell:
    """One recorded compression: a press at a ratio, or a press that works while decoding (`ratio` None).

    Attributes:
        name: the press as the folder names it. ratio: share removed, as spelled in the file.
        spec: the manifest's entry for the press: `cls` and parameters ({} if it has none).
        margin: smallest score gap at the threshold, relative; None if not recorded.
        arrays: the cell's arrays; `scores` are those of the nearest earlier ratio where equal ones were left out.
    """

    name: str
    ratio: str | None
    spec: dict
    margin: float | None
    arrays: dict = field(repr=False)

    @property
    def label(self) -> str:
        return self.name if self.ratio is None else f"{self.name}/{self.ratio}"


@dataclass(frozen=True)
class GoldenModel:
    """One model folder, read on demand."""

    name: str
    path: Path
    manifest: dict = field(repr=False)

    def reference(self) -> dict[str, np.ndarray]:
        """The arrays of reference.npz."""
        with np.load(self.path / "reference.npz") as stored:
            return dict(stored)

    def cells(self) -> list[Cell]:
        """Every cell of presses.npz in the order of the file; none without that file."""
        path = self.path / "presses.npz"
        if not path.exists():
            return []
        with np.load(path) as stored:
            arrays = dict(stored)
        return [self._cell(name, ratio, found) for (name, ratio), found in _grouped(arrays).items()]

    def _cell(self, name: str, ratio: str | None, arrays: dict) -> Cell:
        spec = self.manifest.get("presses", {}).get(name, {})
        recorded = spec.get("ratios", {}).get(ratio, {})
        return Cell(name, ratio, spec, recorded.get("margin"), arrays)


def _grouped(arrays: dict[str, np.ndarray]) -> dict[tuple[str, str | None], dict]:
    """NAME/RATIO/ARRAY and decoding_NAME/ARRAY → {(name, ratio): arrays}, scores carried on from ratio to ratio.

    An array of no cell (filters, head scores) is in every cell."""
    cells, scores = {}, {}
    shared = {key: value for key, value in arrays.items() if "/" not in key}
    for key, value in arrays.items():
        *cell, array = key.split("/")
        if len(cell) not in (1, 2):
            continue
        name, ratio = cell[0], cell[1] if len(cell) == 2 else None
        cells.setdefault((name, ratio), dict(shared))[array] = value
    for (name, _), found in cells.items():
        scores[name] = found.get("scores", scores.get(name))
        if scores[name] is not None:
            found["scores"] = scores[name]
    return cells


def discover(folder: Path) -> list[GoldenModel]:
    """Every sub-folder with config.json and reference.npz (or the folder itself), by name.

    Raises:
        FileNotFoundError: the folder does not exist or holds no model.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"expected a folder in the golden format; {folder} is not a folder")
    manifest = _manifest(folder)
    found = [p.parent for p in sorted(folder.glob("*/reference.npz")) if (p.parent / "config.json").exists()]
    if not found and (folder / "reference.npz").exists():
        found, manifest = [folder], _manifest(folder.parent)
    if not found:
        raise FileNotFoundError(f"{folder} holds no model: expected sub-folders with config.json and reference.npz")
    return [GoldenModel(p.name, p, manifest.get(p.name, {})) for p in found]


def _manifest(folder: Path) -> dict:
    path = folder / "manifest.json"
    return json.loads(path.read_text()).get("models", {}) if path.exists() else {}
