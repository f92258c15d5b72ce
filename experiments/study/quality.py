"""Quality of the study's systems: the share of needles found, from rows of `kvjax sweep` on prompts of the same length."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.rows import IDENTITY, Row
from experiments.stats import Estimate, share
from experiments.study.cell import Cell
from experiments.study.run import MODE, SEED
from experiments.tasks import needle

#: (policy in full, budget, length) -> score by prompt.
Quality = Mapping[tuple[str, int | float, int], Mapping[int, float]]


def beside(path: str | Path) -> Path:
    """`out/F.jsonl` -> `out/F.quality.jsonl`, the rows of the study's own sweep."""
    path = Path(path)
    return path.with_name(f"{path.stem}.quality.jsonl")


def of_rows(rows: Iterable[Row], like: Row) -> Quality:
    """Scores of needles that were asked for after compression, of the model, dtype and prompts of the study's row `like`.

    Other rows are passed over. A prompt that several files have counts once: the same policy answers it alike.
    """
    found: dict[tuple, dict[int, float]] = {}
    for row in rows:
        asked = row["task"], row["mode"], row["seed"]
        if asked == (needle.NAME, MODE, SEED) and all(row[name] == like[name] for name in IDENTITY):
            scores = found.setdefault((row["policy_repr"], row["budget"], row["length"]), {})
            scores.setdefault(row["prompt"], row["score"])
    return found


def of_cell(cell: Cell, quality: Quality) -> Estimate | None:
    """A cell's quality with Wilson's interval; it does not depend on the batch. None where it was not measured."""
    scores = quality.get(_name(cell))
    return share(list(scores.values())) if scores else None


def on_shared_prompts(cell: Cell, full: Cell, quality: Quality) -> tuple[Estimate | None, Estimate | None]:
    """The quality of both on the prompts that both answered; (None, None) where there is none."""
    mine, other = (quality.get(_name(one), {}) for one in (cell, full))
    shared = sorted(mine.keys() & other.keys())
    if not shared:
        return None, None
    return share([mine[prompt] for prompt in shared]), share([other[prompt] for prompt in shared])


def _name(cell: Cell) -> tuple[str, int | float, int]:
    return cell.policy_repr, cell.budget, cell.length
