"""ZeroSCROLLS: ten tasks over long texts (Shaham et al., 2023, arXiv 2305.14196), asked with nothing but an instruction.

Source: tau-nlp/zero_scrolls, experiments/hf/run_hf_model.py (the input, cut before its query) and experiments/api/api.py (tokens
generated); metrics/ of the data set tau/zero_scrolls. The test split's outputs are not published, so rows come from the
validation split, about 20 a task. `length` is that of what comes before the query. We differ: the geometric mean of ROUGE-1, -2
and -L is taken prompt by prompt, where the benchmark takes it of their means, which the row's rouge1, rouge2 and rougeL give.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.metrics import ordering
from experiments.tasks.datasets.metrics.qa_f1 import qa_f1
from experiments.tasks.datasets.metrics.rouge_n import rouge_123
from experiments.tasks.datasets.own_rules import OwnRules
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub
from experiments.tasks.protocol import Asked, Asking, Rules
from experiments.tasks.split import SPLIT

FOLDER = "hf://datasets/tau/zero_scrolls/"
NEW_TOKENS = {
    "gov_report": 1024, "summ_screen_fd": 512, "qmsum": 512, "squality": 512, "qasper": 128, "narrative_qa": 64, "quality": 10,
    "musique": 32, "space_digest": 36, "book_sum_sort": 256,
}  # fmt: skip
SUMMARIES = ("gov_report", "summ_screen_fd", "qmsum", "squality")
METRICS: dict[str, Callable[[str, str], float]] = {
    **dict.fromkeys(("qasper", "narrative_qa", "musique"), qa_f1),
    "quality": ordering.same_letter,
    "space_digest": ordering.near_percentage,
    "book_sum_sort": ordering.concordance,
}


@dataclass(frozen=True)
class ZeroScrolls(OwnRules):
    """A task of ZeroSCROLLS; rows of one id are one prompt with several references."""

    protocol: Asking = SPLIT
    BENCHMARK: ClassVar[str] = "zeroscrolls"
    FIELDS: ClassVar[tuple[str, ...]] = ("id", "input", "output", "query_start_index", "truncation_seperator")

    def __post_init__(self) -> None:
        if self.task not in NEW_TOKENS:
            raise ValueError(f"zeroscrolls has no task {self.task!r}, only {', '.join(NEW_TOKENS)}")

    def official(self) -> Rules:
        return Rules(self._parts, NEW_TOKENS[self.task], self._best)

    @cached_property
    def rows(self) -> Sequence[Record]:
        """The first row of each id, with all its `outputs`."""
        found: dict[str, Record] = {}
        for row in self.data.rows:
            found.setdefault(row["id"], row | {"outputs": []})["outputs"].append(self._output(row))
        return list(found.values())

    def references(self, row: Record) -> tuple[str, ...]:
        return tuple(row["outputs"])

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        """ROUGE-1, -2 and -L of summaries, each its best over the references."""
        return self._rouge(answer, references) if self.task in SUMMARIES else {}

    def _best(self, answer: str, references: Sequence[str]) -> float:
        if self.task in SUMMARIES:
            one, two, longest = self._rouge(answer, references).values()
            return (one * two * longest) ** (1 / 3)
        return max(METRICS[self.task](answer, reference) for reference in references)

    def _rouge(self, answer: str, references: Sequence[str]) -> dict[str, float]:
        found = [rouge_123(answer, reference) for reference in references]
        return {name: max(row[name] for row in found) for name in ("rouge1", "rouge2", "rougeL")}

    def _parts(self, row: Record) -> Asked:
        text, at = row["input"], row["query_start_index"]
        if not isinstance(at, int) or not 0 < at <= len(text):
            raise ValueError(f"{self.NAME}: row {row['id']!r} has query_start_index {at!r}, its input {len(text)} letters")
        return Asked(text[:at], text[at:], mark=row["truncation_seperator"])

    def _output(self, row: Record) -> str:
        if not isinstance(row["output"], str):
            raise ValueError(f"{self.NAME}: row {row['id']!r} has no output; test.jsonl comes without: use validation.jsonl")
        return row["output"]


def tasks(folder: Path | None = None) -> tuple[ZeroScrolls, ...]:
    """All tasks, from TASK/validation.jsonl in `folder` (default: zeroscrolls in `datasets_folder()`), else from the hub's zip."""
    files, file = folder or datasets_folder() / "zeroscrolls", "{}/validation.jsonl".format

    def hub(name: str) -> Hub:
        return Hub(f"{FOLDER}{name}.zip", file(name))

    return tuple(ZeroScrolls(name, LocalOrHub(Local(files / file(name)), hub(name))) for name in NEW_TOKENS)
