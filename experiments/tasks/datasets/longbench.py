"""LongBench's 21 tasks (Bai et al., 2024, arXiv 2308.14508).

Source of the rules: THUDM/LongBench, LongBench/pred.py, eval.py and config/; NVIDIA/kvpress, evaluation/benchmarks/longbench
(which publishes the 16 English and code tasks). The texts are in `longbench.json`. We differ: the benchmark ends samsum's
answer at its first line break, which cannot come first; here the answer runs on and its first line that is not empty is
graded, as the benchmark grades it. Steps for single models (xgen, internlm) are left out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.metrics.classification import classification
from experiments.tasks.datasets.metrics.code_similarity import code_similarity
from experiments.tasks.datasets.metrics.qa_f1 import qa_f1, qa_f1_words_zh
from experiments.tasks.datasets.metrics.retrieval import count, retrieval, retrieval_zh
from experiments.tasks.datasets.metrics.rouge_l import rouge_l, rouge_l_zh
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub
from experiments.tasks.datasets.task import DatasetTask, templates
from experiments.tasks.protocol import OFFICIAL, Asked, Asking, Rules

#: Fetched whole; it holds data/TASK.jsonl and, for LongBench-E, data/TASK_e.jsonl.
ARCHIVE = "hf://datasets/THUDM/LongBench/data.zip"
METRICS: dict[str, Callable[..., float]] = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa"), qa_f1),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), rouge_l),
    **dict.fromkeys(("trec", "lsht"), classification),
    **dict.fromkeys(("dureader", "vcsum"), rouge_l_zh),
    **dict.fromkeys(("lcc", "repobench-p"), code_similarity),
    "multifieldqa_zh": qa_f1_words_zh,
    "passage_count": count,
    "passage_retrieval_en": retrieval,
    "passage_retrieval_zh": retrieval_zh,
}
#: Asked without the chat template: worked examples and code to go on with.
PLAIN = ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
#: Graded by the first line of the answer.
FIRST_LINE = ("trec", "triviaqa", "samsum", "lsht")
#: kvpress takes the answer's opening off the end of these inputs and sets it after the chat template.
OPENED = ("trec", "triviaqa", "samsum")
#: Tokens that kvpress adds to every answer.
MORE_TOKENS = 20


@dataclass(frozen=True)
class LongBench(DatasetTask):
    """A task of LongBench."""

    BENCHMARK: ClassVar[str] = "longbench"
    FIELDS: ClassVar[tuple[str, ...]] = ("input", "context", "answers", "length", "all_classes")

    def __post_init__(self) -> None:
        if self.task not in METRICS:
            raise ValueError(f"{self.BENCHMARK} has no task {self.task!r}, only {', '.join(METRICS)}")

    def official(self) -> Rules:
        return Rules(self._whole, self._texts["new_tokens"], self._best)

    def kvpress(self) -> Rules:
        def stripped(answer: str, references: Sequence[str]) -> float:
            return self._best(answer.lstrip(), references)

        return Rules(self._parts, self._texts["new_tokens"] + MORE_TOKENS, stripped)

    def references(self, row: Record) -> tuple[str, ...]:
        return tuple(row["answers"])

    def meta(self, row: Record) -> dict[str, Any]:
        """`words`: the length that the benchmark gives the row, in words or Chinese characters."""
        return {"words": row["length"]}

    @property
    def _texts(self) -> dict[str, Any]:
        return templates("longbench")[self.task]

    def _whole(self, row: Record) -> Asked:
        return Asked(self._texts["whole"].format(**row), chat=self.task not in PLAIN)

    def _parts(self, row: Record) -> Asked:
        texts = self._texts
        words = row["input"].removesuffix(texts["prefix"]) if self.task in OPENED else row["input"]
        return Asked(texts["context"].format(**row), texts["question"].format(**row | {"input": words}), texts["prefix"])

    def _best(self, answer: str, references: Sequence[str]) -> float:
        """The best score over the references."""
        metric = METRICS[self.task]
        if metric is classification:
            metric = partial(metric, classes=self.rows[0]["all_classes"])
        text = answer.lstrip("\n").split("\n")[0] if self.task in FIRST_LINE else answer
        return max((metric(text, reference) for reference in references), default=0.0)


def tasks(folder: Path | None = None, protocol: Asking = OFFICIAL) -> tuple[LongBench, ...]:
    """All tasks, from TASK.jsonl in `folder` (default: longbench in `datasets_folder()`), else from the hub."""
    files = folder or datasets_folder() / "longbench"
    return tuple(LongBench(name, source(files, f"{name}.jsonl"), protocol) for name in METRICS)


def source(files: Path, name: str) -> LocalOrHub:
    """A file of the benchmark, in `files` or in the hub's archive."""
    return LocalOrHub(Local(files / name), Hub(ARCHIVE, f"data/{name}"))
