"""Quality of the study's systems: the share of needles found, from rows of `kvjax sweep` on prompts of the same length."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from experiments.rows import Row
from experiments.stats import Estimate, share
from experiments.study.cell import Cell

#: (policy in full, budget, length) -> share of prompts answered.
Quality = Mapping[tuple[str, int | float, int], Estimate]


def beside(path: str | Path) -> Path:
    """`out/F.jsonl` -> `out/F.quality.jsonl`, the rows of the sweep."""
    path = Path(path)
    return path.with_name(f"{path.stem}.quality.jsonl")


def of_rows(rows: Iterable[Row]) -> Quality:
    """Scores of each policy, budget and length with Wilson's interval; rows without a score say nothing."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        if "score" in row:
            found.setdefault((row["policy_repr"], row["budget"], row["length"]), []).append(row["score"])
    return {name: share(scores) for name, scores in found.items()}


def of_cell(cell: Cell, quality: Quality) -> Estimate | None:
    """A cell's quality, which does not depend on the batch: padded batches are exact. None where it was not measured."""
    return quality.get((cell.policy_repr, cell.budget, cell.length))
