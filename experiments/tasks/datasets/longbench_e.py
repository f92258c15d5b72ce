"""LongBench-E: 13 of LongBench's tasks with rows spread evenly over lengths (Bai et al., 2024, section 3.4).

Source: THUDM/LongBench, LongBench/pred.py --e and eval.py, scorer_e. Each prompt's `bucket` goes into its result row; the
benchmark reports the mean of each bucket.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.longbench import LongBench, source
from experiments.tasks.protocol import OFFICIAL, Asking, Rules

TASKS = (
    "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "gov_report", "multi_news", "trec", "triviaqa", "samsum",
    "passage_count", "passage_retrieval_en", "lcc", "repobench-p",
)  # fmt: skip


@dataclass(frozen=True)
class LongBenchE(LongBench):
    """A task of LongBench-E; texts and metrics are LongBench's."""

    BENCHMARK: ClassVar[str] = "longbench_e"

    def kvpress(self) -> Rules:
        """As LongBench's, but graded without stripping the answer first, as kvpress does."""
        return replace(super().kvpress(), grade=self.official().grade)

    def meta(self, row: Record) -> dict[str, Any]:
        return {**super().meta(row), "bucket": bucket(row["length"])}


def bucket(words: int) -> str:
    """The benchmark's three lengths, in words: 0-4k, 4-8k, 8k+."""
    return "0-4k" if words < 4000 else "4-8k" if words < 8000 else "8k+"


def tasks(folder: Path | None = None, protocol: Asking = OFFICIAL) -> tuple[LongBenchE, ...]:
    """All tasks, from TASK_e.jsonl in `folder` (default: longbench in `datasets_folder()`), else from the hub."""
    files = folder or datasets_folder() / "longbench"
    return tuple(LongBenchE(name, source(files, f"{name}_e.jsonl"), protocol) for name in TASKS)
