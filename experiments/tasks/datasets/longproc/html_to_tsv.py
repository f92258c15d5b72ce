"""LongProc's extraction of a table from a web page: F1 of its rows.

    P = share of the answer's rows among the reference's,  R = the other way round,  F1 = 2PR / (P + R)
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.longproc.procedure import Procedure
from experiments.tasks.datasets.metrics.normalize import english

_BLOCK = re.compile(r"```tsv([\s\S]*)```")
Row = tuple[str, ...]


@dataclass(frozen=True)
class HtmlToTsv(Procedure):
    """Source: longproc/html_to_tsv_evaluator.py and eval_html_to_tsv, without pandas. The pages lie where html_path says."""

    KIND: ClassVar[str] = "html_to_tsv"
    FILE: ClassVar[str] = "html_to_tsv_{size}.json"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "html_path", "task_topic", "task_description", "gt", "tsv_header", "filtering_instruction",
    )  # fmt: skip

    def values(self, row: Record) -> Mapping[str, Any]:
        page = self.folder / row["html_path"]
        if not page.is_file():
            raise FileNotFoundError(f"no file {page}: put the benchmark's {row['html_path']} there, as it is published")
        filled = {name: row[name] for name in ("task_topic", "task_description", "tsv_header", "filtering_instruction")}
        return {"html_str": page.read_text(encoding="utf-8"), **filled}

    @property
    def others(self) -> Sequence[Path]:
        return [self.folder / path for path in sorted({row["html_path"] for row in self.data.rows})]

    def references(self, row: Record) -> tuple[str, ...]:
        return (row["gt"],)

    def figures(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        try:
            ours, theirs = table(block(answer)), table(references[0])
        except (ValueError, csv.Error):
            return {"score": 0.0, "precision": 0.0, "recall": 0.0, "extraction_rate": 0.0}
        if len(ours[0]) != len(theirs[0]):
            return {"score": 0.0, "precision": 0.0, "recall": 0.0, "extraction_rate": 0.0}
        precision = sum(row in theirs for row in ours) / len(ours)
        recall = sum(row in ours for row in theirs) / len(theirs)
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
        return {"score": f1, "precision": precision, "recall": recall, "extraction_rate": 1.0}


def block(answer: str) -> str:
    """What the ```tsv fence holds, up to the last fence; what follows an open one; all of an answer without."""
    found = _BLOCK.search(answer)
    return (found[1] if found else answer.partition("```tsv")[2].partition("```tsv")[0] or answer).strip()


def table(text: str) -> list[Row]:
    """Rows below the header, their cells normalised and without spaces.

    A last row of another length than the header is dropped; any other is one of N/A.

    Raises:
        ValueError: no row is left, or two columns have one name.
    """
    header, *rows = csv.reader(text.strip().split("\n"), delimiter="\t")
    if rows and len(rows[-1]) != len(header):
        rows.pop()
    if not rows or len(set(header)) < len(header):
        raise ValueError("a table has a header of different names and a row at least")
    whole = [row if len(row) == len(header) else ["N/A"] * len(header) for row in rows]
    return [tuple(english(cell).replace(" ", "") for cell in row) for row in whole]
