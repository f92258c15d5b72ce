"""LongBench v2: 503 questions with four choices (Bai et al., 2025, arXiv 2412.15204), asked without worked thoughts.

Source: THUDM/LongBench, pred.py and result.py; NVIDIA/kvpress, evaluation/benchmarks/longbenchv2. The texts are in
`longbench_v2.json`. We differ: answers are greedy where the benchmark samples at temperature 0.1; chain-of-thought (two
answers a question), retrieval and no-context prompts are left out.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.metrics.multiple_choice import letter, letter_anywhere
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub
from experiments.tasks.datasets.task import DatasetTask, templates
from experiments.tasks.protocol import OFFICIAL, Asked, Asking, Rules

FILE = "hf://datasets/THUDM/LongBench-v2/data.json"
#: Places of the template, filled in this order.
PLACES = (("$DOC$", "context"), ("$Q$", "question"), *((f"$C_{x}$", f"choice_{x}") for x in "ABCD"))


@dataclass(frozen=True)
class LongBenchV2(DatasetTask):
    """LongBench v2; `meta` repeats what the benchmark reports means of."""

    BENCHMARK: ClassVar[str] = "longbench_v2"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "context", "question", "choice_A", "choice_B", "choice_C", "choice_D", "answer", "difficulty", "length", "domain",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.task not in templates("longbench_v2"):
            raise ValueError(f"longbench_v2 has no task {self.task!r}, only {', '.join(templates('longbench_v2'))}")

    def official(self) -> Rules:
        return Rules(self._whole, self._texts["new_tokens"], letter)

    def kvpress(self) -> Rules:
        return Rules(self._parts, self._texts["kvpress_new_tokens"], letter_anywhere)

    def references(self, row: Record) -> tuple[str, ...]:
        return (row["answer"],)

    def meta(self, row: Record) -> dict[str, Any]:
        """`document` is the row's length: short, medium or long."""
        return {"difficulty": row["difficulty"], "document": row["length"], "domain": row["domain"]}

    @property
    def _texts(self) -> dict[str, Any]:
        return templates("longbench_v2")[self.task]

    def _whole(self, row: Record) -> Asked:
        text = self._texts["whole"]
        for place, field in PLACES:
            text = text.replace(place, row[field].strip())
        return Asked(text)

    def _parts(self, row: Record) -> Asked:
        texts, choices = self._texts, {x: row[f"choice_{x}"] for x in "ABCD"}
        question = texts["question"].format(question=row["question"], **choices)
        return Asked(texts["context"].format(context=row["context"]), question, texts["prefix"])


def tasks(folder: Path | None = None, protocol: Asking = OFFICIAL) -> tuple[LongBenchV2, ...]:
    """The task, from data.json in `folder` (default: longbench_v2 in `datasets_folder()`), else from the hub."""
    files = folder or datasets_folder() / "longbench_v2"
    return (LongBenchV2("0shot", LocalOrHub(Local(files / "data.json"), Hub(FILE)), protocol),)
