"""LongMemEval: questions about a user's former chats (Wu et al., 2024, arXiv 2410.10813, ICLR 2025).

    oracle, s, m            all 500 questions, graded by a judge model: "yes" in its answer to the published prompt
    ..._contained           no judge: the normalised reference is contained in the normalised answer

Source: xiaowu0162/LongMemEval, src/generation/run_generation.py (sessions as JSON, in the order of their dates as text, without
has_answer) and src/evaluation/evaluate_qa.py. The texts are in `longmemeval.json`. `length` cuts the history's end, as the
benchmark does. We differ: the judge is the model that KVJAX_JUDGE names, where the published numbers have gpt-4o-2024-08-06;
..._contained is ours, compares with nobody's numbers and leaves out what only a judge can grade (preferences, questions
without an answer).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from experiments.provenance import digest
from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.judge import Judge, judge_named
from experiments.tasks.datasets.metrics.normalize import english
from experiments.tasks.datasets.own_rules import OwnRules
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub
from experiments.tasks.datasets.task import templates
from experiments.tasks.protocol import Asked, Asking, Rules
from experiments.tasks.split import SPLIT

FOLDER = "hf://datasets/xiaowu0162/longmemeval-cleaned/"
FILES = {"oracle": "longmemeval_oracle.json", "s": "longmemeval_s_cleaned.json", "m": "longmemeval_m_cleaned.json"}
TYPES = (
    "single-session-user", "single-session-assistant", "single-session-preference", "temporal-reasoning", "knowledge-update",
    "multi-session",
)  # fmt: skip
PREFERENCE, ABSTENTION = "single-session-preference", "abstention"


@dataclass(frozen=True)
class LongMemEval(OwnRules):
    """All questions, graded by `judge`; None: the model that KVJAX_JUDGE names."""

    protocol: Asking = SPLIT
    judge: Judge | None = None
    BENCHMARK: ClassVar[str] = "longmemeval"
    FIELDS: ClassVar[tuple[str, ...]] = (
        "question_id", "question_type", "question", "answer", "question_date", "haystack_dates", "haystack_sessions",
    )  # fmt: skip

    def official(self) -> Rules:
        return Rules(self._parts, templates("longmemeval")["prompt"]["new_tokens"], self._judged)

    def references(self, row: Record) -> tuple[str, ...]:
        """The answer, the question and what it is judged as: its type, or abstention."""
        return (str(row["answer"]), row["question"], kind(row))

    def meta(self, row: Record) -> dict[str, Any]:
        """`data` names the grader too: rows that two of them graded are not averaged."""
        told = {"question_id": row["question_id"], "question_type": row["question_type"], "grader": self.grader}
        return told | {"data": f"{self.data.digest}+{digest([self.grader.encode()])}"}

    @property
    def grader(self) -> str:
        """Names what graded the answers, in every result row."""
        return self._judge.name

    @cached_property
    def _judge(self) -> Judge:
        return self.judge or judge_named("LongMemEval without a judge is longmemeval/oracle_contained/split and the like")

    def _judged(self, answer: str, references: Sequence[str]) -> float:
        return float(said_yes(self._judge.answer(judge_prompt(answer.strip(), references))))

    def _parts(self, row: Record) -> Asked:
        texts = templates("longmemeval")["prompt"]
        history = "".join(
            texts["session"].format(number=number, date=date, content=json.dumps(turns))
            for number, (date, turns) in enumerate(sessions(row), 1)
        )
        return Asked(texts["context"] + history, texts["question"].format(date=row["question_date"], question=row["question"]))


@dataclass(frozen=True)
class Contained(LongMemEval):
    """Questions that have an answer of words, graded by whether an answer contains it."""

    @property
    def grader(self) -> str:
        return "contained"

    @cached_property
    def rows(self) -> Sequence[Record]:
        return [row for row in self.data.rows if kind(row) not in (PREFERENCE, ABSTENTION)]

    def _judged(self, answer: str, references: Sequence[str]) -> float:
        wanted = f" {english(references[0])} "
        return float(bool(wanted.strip()) and wanted in f" {english(answer)} ")


def kind(row: Record) -> str:
    """What an answer is judged as. Raises ValueError for a type that the benchmark does not have."""
    if row["question_type"] not in TYPES:
        known = ", ".join(TYPES)
        raise ValueError(f"longmemeval: question {row['question_id']!r} has type {row['question_type']!r}, none of {known}")
    return ABSTENTION if "_abs" in row["question_id"] else row["question_type"]


def sessions(row: Record) -> list[tuple[str, list[Record]]]:
    """(date, turns) in the order of the dates as text; has_answer is left out.

    Raises:
        ValueError: not a date for each session, or a session that is no list of turns with role and content.
    """
    dates, found = row["haystack_dates"], row["haystack_sessions"]
    if not isinstance(found, list) or not isinstance(dates, list) or len(dates) != len(found):
        raise ValueError(f"longmemeval: question {row['question_id']!r} needs a list of sessions and a date for each")
    for session in found:
        turns = session if isinstance(session, list) else [None]
        if not all(isinstance(turn, dict) and {"role", "content"} <= set(turn) for turn in turns):
            raise ValueError(f"longmemeval: question {row['question_id']!r} has a session that is no list of {{role, content}}")
    plain = [[{name: value for name, value in turn.items() if name != "has_answer"} for turn in session] for session in found]
    return sorted(zip(dates, plain, strict=True), key=lambda pair: pair[0])


def judge_prompt(answer: str, references: Sequence[str]) -> str:
    """What the judge is asked of an answer; references as of `LongMemEval.references`."""
    right, question, how = references
    texts = templates("longmemeval")["judge"]
    return texts[how if how in texts else "answer"].format(question=question, answer=right, response=answer)


def said_yes(verdict: str) -> bool:
    """Whether a judge's words count as yes."""
    return "yes" in verdict.lower()


def tasks(folder: Path | None = None, protocol: Asking = SPLIT) -> tuple[LongMemEval, ...]:
    """All tasks, from the published files in `folder` (default: longmemeval in `datasets_folder()`), else from the hub."""
    files = folder or datasets_folder() / "longmemeval"
    source = {name: LocalOrHub(Local(files / file), Hub(FOLDER + file)) for name, file in FILES.items()}
    judged = [LongMemEval(name, found, protocol) for name, found in source.items()]
    return (*judged, *(Contained(f"{name}_contained", found, protocol) for name, found in source.items()))
