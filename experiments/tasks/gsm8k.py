"""GSM8K: grade-school word problems after worked examples; the answer is the number after `####`.

Source: Cobbe et al., 2021, "Training Verifiers to Solve Math Word Problems" (the layout of train.jsonl and test.jsonl and
the `#### ` rule); EleutherAI's lm-evaluation-harness, task gsm8k, strict-match (the layout of the prompt, five examples from
the train split, and what is ignored in a number: commas, a dollar sign, a period at the end).
We differ: examples are drawn anew for each prompt, and their calculator notes (`<<48/2=24>>`) are left out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub, Source
from experiments.tasks.fewshot import FewShot

_FINAL = re.compile(r"#### (-?[0-9.,]+)")
_NOTE = re.compile(r"<<[^>]*>>")


@dataclass(frozen=True)
class Gsm8k(FewShot):
    """Problems of `test` (fields question and answer) after at most `shots` worked examples of `train`."""

    test: Source
    train: Source
    NAME: str = "gsm8k"
    shots: int = 5
    fields: ClassVar[tuple[str, ...]] = ("question", "answer")
    PREFIX: ClassVar[str] = "\nAnswer:"
    new_tokens: ClassVar[int] = 256

    def ask(self, record: Record) -> str:
        return f"Question: {record['question']}"

    def solve(self, record: Record) -> str:
        return " " + _NOTE.sub("", record["answer"])

    def answer(self, record: Record) -> str:
        found = final(record["answer"])
        if found is None:
            raise ValueError(f"{self.NAME}: no '#### number' ends the answer {record['answer']!r}")
        return found

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the first `#### number`, before any further question, is one of the references."""
        return float(final(answer.partition("Question:")[0]) in references)


def final(text: str) -> str | None:
    """The number after the first `#### `, without commas and a final period; None where there is none."""
    found = _FINAL.search(text)
    return found[1].replace(",", "").removesuffix(".") if found else None


def split(name: str) -> LocalOrHub:
    """NAME.jsonl in gsm8k in `datasets_folder()`, else the hub's file."""
    hub = Hub(f"hf://datasets/openai/gsm8k/main/{name}-00000-of-00001.parquet")
    return LocalOrHub(Local(datasets_folder() / "gsm8k" / f"{name}.jsonl"), hub)


GSM8K = Gsm8k(split("test"), split("train"))
