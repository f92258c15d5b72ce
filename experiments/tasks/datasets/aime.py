r"""AIME 2024 and 2025: competition problems with a whole number from 0 to 999 as the answer, solved by long reasoning.

    score = mean over samples of [the last \boxed{...} is the answer, letter by letter];  integer_accuracy: as whole numbers

Prompts are short and answers long: what is dropped while decoding matters. Sources: the prompt and fields of R-KV (Cai et al.,
2025, HuggingFace/run_math.py); NVIDIA/kvpress, evaluation/benchmarks/aime25/calculate_metrics.py (the string test, which
"033" or a space fails; hence the other). A row holds the mean over `samples` sampled answers (temperature 0.6, top-p 0.95);
R-KV takes 64. Models may think: the chat template is filled in without a word about it, as by R-KV (`--use_chat_template`), where
other tasks ask Qwen3's not to. We differ: an answer has at most 32,768 tokens, or what the model's context leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.own_rules import OwnRules
from experiments.tasks.datasets.source import Local
from experiments.tasks.example import Example
from experiments.tasks.math_exact import last_boxed
from experiments.tasks.protocol import Asked, Asking, Rules
from experiments.tasks.split import WHOLE

PROMPT = (
    "You are given a math problem.\n\nProblem: {question}\n\n You need to solve the problem step by step. First, you need to "
    "provide the chain-of-thought, then provide the final answer.\n\n "
    "Provide the final answer in the format: Final answer:  \\boxed{{}}"
)
MOST_TOKENS = 32_768
YEARS = ("24", "25")


@dataclass(frozen=True)
class Aime(OwnRules):
    """A year's problems: rows with question and answer."""

    protocol: Asking = WHOLE
    BENCHMARK: ClassVar[str] = "aime"
    FIELDS: ClassVar[tuple[str, ...]] = ("question", "answer")

    def official(self) -> Rules:
        return Rules(lambda row: Asked(PROMPT.format(question=row["question"]), thinking=True), MOST_TOKENS, exact)

    def references(self, row: Record) -> tuple[str, ...]:
        answer = str(row["answer"])
        if whole(answer) is None:
            raise ValueError(f"{self.NAME}: expected a whole number as the answer, got {answer!r}")
        return (answer,)

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        """The comparison as whole numbers, and whether anything is boxed."""
        found = last_boxed(answer)
        right = found is not None and whole(found) == whole(references[0])
        return {"integer_accuracy": float(right), "answered": float("boxed{" in answer)}

    def _check(self, lm: Any, length: int, mode: str) -> None:
        if mode not in self.MODES:
            raise ValueError(f"{self.NAME} has no question mode {mode!r}, only {', '.join(self.MODES)}")
        if length >= lm.decoder.max_positions:
            raise ValueError(f"{self.NAME}: length {length} leaves no room for an answer in {lm.decoder.max_positions} positions")

    def _example(self, lm: Any, length: int, index: int, number: int, *, mode: str) -> Example:
        made = super()._example(lm, length, index, number, mode=mode)
        room = lm.decoder.max_positions - len(made.compressed) - len(made.fed)
        return replace(made, new_tokens=min(MOST_TOKENS, room))


def exact(answer: str, references: Sequence[str]) -> float:
    """1 if what the last box holds is the reference, letter by letter."""
    return float(last_boxed(answer) == references[0])


def whole(text: str) -> int | None:
    """A whole number as it may be written: spaces, leading zeros, thousands' commas; None for anything else."""
    digits = text.strip().strip("$").strip().replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def tasks(folder: Path | None = None) -> tuple[Aime, ...]:
    """Both years, from aime24.jsonl and aime25.jsonl in `folder` (default: aime in `datasets_folder()`)."""
    files = folder or datasets_folder() / "aime"
    return tuple(Aime(year, Local(files / f"aime{year}.jsonl")) for year in YEARS)
