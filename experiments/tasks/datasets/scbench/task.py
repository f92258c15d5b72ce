"""A task of SCBench in one of its two modes; a sweep takes it as it is, without `Answering`."""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from experiments.batch_size import rows_that_fit
from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.conversation import next_turn
from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.own_rules import OwnRules
from experiments.tasks.datasets.scbench.grades import GRADES
from experiments.tasks.datasets.scbench.session import Ids, Session, Turn, answered
from experiments.tasks.datasets.task import templates
from experiments.tasks.example import Read
from experiments.tasks.protocol import Asked, Asking, Rules
from experiments.tasks.split import Split

#: Tasks whose turns say which of two kinds they are.
MIXED = {"summary_with_needles": ("scbench_summary", "scbench_passkey"), "repoqa_and_kv": ("scbench_repoqa", "scbench_kv")}


@dataclass(frozen=True)
class Apart(Split):
    """Same context, different queries."""

    name: str = "scdq"
    MODES: tuple[str, ...] = ("unseen",)


@dataclass(frozen=True)
class InTurn(Split):
    """Several turns of one conversation."""

    name: str = "multi_turn"
    MODES: tuple[str, ...] = ("seen",)


SCDQ, MULTI_TURN = Apart(), InTurn()


@dataclass(frozen=True)
class SCBench(OwnRules):
    """A task of SCBench, with at most `turns` of each row, where the first row of the file has more; None: all."""

    protocol: Asking = SCDQ
    turns: int | None = 5
    BENCHMARK: ClassVar[str] = "scbench"
    FIELDS: ClassVar[tuple[str, ...]] = ("context", "multi_turns")

    def __post_init__(self) -> None:
        if self.task not in templates("scbench"):
            raise ValueError(f"scbench has no task {self.task!r}, only {', '.join(templates('scbench'))}")

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.FIELDS, "repo") if self.task.startswith("repoqa") else self.FIELDS

    def official(self) -> Rules:
        return Rules(self._context, max(self._limits.values()), GRADES[next(iter(self._limits))])

    def references(self, row: Record) -> tuple[str, ...]:
        """Each turn's answer, as text."""
        return tuple(str(turn["answer"]) for turn in self._checked(row))

    def measure(self, lm: Any, cache: Any, policy: Any, reads: Sequence[Read]) -> list[dict[str, Any]]:
        """All turns over every row of `cache`."""
        return answered(lm, cache, policy, reads[0].example)

    def alike(self, example: Session) -> Hashable:
        """A session by itself: each has its own turns."""
        return example.index

    def tokens(self, example: Session) -> tuple[int, int]:
        """Tokens fed and generated at most, of all turns; in turns the reference answers are fed too."""
        told = 0 if example.apart else sum(len(turn.told) for turn in example.turns[:-1])
        return told + sum(len(turn.fed) for turn in example.turns), sum(turn.new_tokens for turn in example.turns)

    rows_at_once = staticmethod(rows_that_fit)

    def _example(self, lm: Any, length: int, index: int, number: int, *, mode: str) -> Session:
        row, apart = self.rows[number], self.protocol.name == SCDQ.name
        self._checked(row)
        before, after = frame(lm) if lm.tokenizer.inner.chat_template else (lm.tokenizer.inner.bos_token or "", "")
        turns = self._turns(lm, row, after)
        text = before + self._context(row).context
        first = "" if apart else f"\n\n{self._question(row, 0, chat=bool(after))}{after}"
        ids, told = _middle_cut(encode_plain(lm, text + first), length)
        if not apart:
            turns = (Turn((), turns[0].kind, turns[0].references, turns[0].new_tokens, turns[0].told), *turns[1:])
        return Session(
            task=self.NAME,
            mode=mode,
            length=length,
            index=index,
            context=ids,
            references=self.references(row),
            new_tokens=max(turn.new_tokens for turn in turns),
            stop=tuple(lm.stop_ids),
            meta={"data": self.data.digest, "protocol": self.protocol.name, "row": number, "dropped_tokens": told},
            turns=turns,
            apart=apart,
        )

    def _turns(self, lm: Any, row: Record, after: str) -> tuple[Turn, ...]:
        chat, encode = bool(lm.tokenizer.inner.chat_template), lambda text: tuple(encode_plain(lm, text))
        between = next_turn(lm) if chat else "\n\n"
        made = []
        for at, turn in enumerate(self._checked(row)):
            kind, fed = self._kind(turn), f"{self._question(row, at, chat=chat)}{after}"
            if self.protocol.name == MULTI_TURN.name:
                fed = between + fed + (self._texts.get("opening", "") if chat and at else "")
            told = encode(str(turn["answer"]))
            made.append(Turn(encode(fed), kind, self._labels(row, turn), self._limits[kind], told))
        return tuple(made)

    def _context(self, row: Record) -> Asked:
        """In mf the context is opened by the first question, or, in turns, by what it asks for."""
        first = self._checked(row)[0]
        opening = first["input"] if self.protocol.name == SCDQ.name else self._wanted(first)
        return Asked(self._texts["context"].format(context=row["context"], prefix=opening))

    def _question(self, row: Record, at: int, *, chat: bool) -> str:
        turn = row["multi_turns"][at]
        return self._form(at, chat=chat).format(input=turn["input"], options=turn.get("options"), wanted=self._wanted(turn))

    def _form(self, at: int, *, chat: bool) -> str:
        """A question's form; in turns the first one, and later ones without a chat template, may have their own."""
        name = "question"
        if self.protocol.name == MULTI_TURN.name and (at == 0 or not chat):
            name = "plain" if at else "first"
        return self._texts.get(name, self._texts["question"])

    def _wanted(self, turn: Mapping[str, Any]) -> str:
        if self.task != "mf":
            return ""
        found = re.search(r"The .+ is", turn["input"])
        if found is None:
            raise ValueError(f"{self.NAME}: expected an input such as 'The largest number is', got {turn['input']!r}")
        return f"What is {found.group().lower()[:-3]}?"

    def _kind(self, turn: Mapping[str, Any]) -> str:
        return turn["task"].removeprefix("scbench_") if self.task in MIXED else self.task

    def _labels(self, row: Record, turn: Mapping[str, Any]) -> tuple[str, ...]:
        answer = turn["answer"]
        labels = tuple(str(label) for label in (answer if isinstance(answer, list) else [answer]))
        if self.task == "choice_eng":
            return (answer, "ABCD"[turn["options"].index(answer)])
        if self._kind(turn) == "repoqa":
            return (answer, *(other for other in self._functions[row["repo"]] if other != answer))
        return labels

    @cached_property
    def _functions(self) -> dict[str, list[str]]:
        """The functions asked for in each repository."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            mine = [turn["answer"] for turn in self._checked(row) if self._kind(turn) == "repoqa"]
            found.setdefault(row["repo"], []).extend(mine)
        return found

    @property
    def _texts(self) -> Mapping[str, Any]:
        return templates("scbench")[self.task]

    @property
    def _limits(self) -> dict[str, int]:
        """Tokens of an answer of each kind."""
        limit = self._texts["new_tokens"]
        return {self.task: limit} if isinstance(limit, int) else {name.removeprefix("scbench_"): n for name, n in limit.items()}

    def _checked(self, row: Record) -> list[Record]:
        """The turns that are asked. Raises ValueError for what has another layout than the benchmark's."""
        turns, needed = row["multi_turns"], {"input", "answer"} | ({"task"} if self.task in MIXED else set())
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) and needed <= set(turn) for turn in turns):
            raise ValueError(f"{self.NAME}: expected multi_turns as a list of objects with {', '.join(sorted(needed))}")
        for turn in turns:
            if self.task == "choice_eng" and turn["answer"] not in (turn.get("options") or ()):
                raise ValueError(f"{self.NAME}: expected the answer {turn['answer']!r} among options, got {turn.get('options')}")
            if self.task in MIXED and turn["task"] not in MIXED[self.task]:
                raise ValueError(f"{self.NAME}: a turn is of {' or '.join(MIXED[self.task])}, got {turn['task']!r}")
        return turns[: self._asked]

    @cached_property
    def _asked(self) -> int | None:
        """Turns of a row that are asked: the benchmark counts those of the first; None for all."""
        first = self.rows[0]["multi_turns"]
        return self.turns if self.turns and isinstance(first, list) and len(first) > self.turns else None


def _middle_cut(ids: list[int], length: int) -> tuple[Ids, int]:
    """The first and the last floor(length / 2) of more than `length` ids, and how many were left out."""
    if len(ids) <= length:
        return tuple(ids), 0
    half = length // 2
    return (*ids[:half], *ids[-half:]), len(ids) - 2 * half
