"""Prompts that are answered in words: greedy tokens after a compressed context, graded against reference answers."""

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax

import kvjax
from experiments.answer_cost import spent
from experiments.batch_size import rows_that_fit
from experiments.tasks.chat import continuation
from experiments.tasks.example import Example, Read, block
from experiments.traces import of_retrieval


class Prompts(Protocol):
    """What a module of `experiments.tasks` offers, or an object where a task has settings (a data set, a protocol)."""

    NAME: str
    MODES: tuple[str, ...]

    def examples(self, lm: Any, length: int, count: int, seed: int, **how: Any) -> Iterator[Example]: ...
    def grade(self, answer: str, references: Sequence[str]) -> float: ...


@dataclass(frozen=True)
class Answering:
    """A task of the sweep: every row of a cache answers, and `prompts.grade` gives the answer a score from 0 to 1."""

    prompts: Prompts

    @property
    def NAME(self) -> str:
        return self.prompts.NAME

    @property
    def MODES(self) -> tuple[str, ...]:
        return self.prompts.MODES

    def examples(self, lm: Any, length: int, count: int, seed: int, **how: Any) -> Iterator[Example]:
        return self.prompts.examples(lm, length, count, seed, **how)

    def measure(self, lm: Any, cache: Any, policy: Any, reads: Sequence[Read]) -> list[dict[str, Any]]:
        """Greedy tokens after what each prompt is fed, a row of `cache` each: a dict a row, with what pivots saw."""
        examples = [read.example for read in reads]
        fed = [list(example.fed) for example in examples]
        began = time.perf_counter()
        extended = jax.block_until_ready(kvjax.extend(lm, cache, fed, policy, block=block(policy)))
        seconds = time.perf_counter() - began
        out = kvjax.decode(lm, extended.cache, policy, max_new_tokens=examples[0].new_tokens, stop=examples[0].stop)
        texts = zip(texts_of(lm, out, examples), examples, strict=True)
        grades = [self.graded(text, example.references) for text, example in texts]
        costs = spent(out, [len(ids) for ids in fed], seconds)
        return [grade | {"spent": costs[row]} | of_retrieval(out.cache, policy, row) for row, grade in enumerate(grades)]

    def alike(self, example: Example) -> Hashable:
        """Answers of as many tokens that end alike are decoded together."""
        return example.new_tokens, example.stop

    def tokens(self, example: Example) -> tuple[int, int]:
        """Tokens fed after the compressed prompt, and tokens generated at most."""
        return len(example.fed), example.new_tokens

    def graded(self, answer: str, references: Sequence[str]) -> dict[str, Any]:
        """What the result row has of an answer: its score and its text."""
        return {"score": float(self.prompts.grade(answer, references)), "answer": answer}

    rows_at_once = staticmethod(rows_that_fit)


class PromptsInParts(Prompts, Protocol):
    """Prompts whose answers have further figures beside their score."""

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class AnsweringInParts(Answering):
    """As `Answering`, with the further figures of an answer in its row, by their names."""

    prompts: PromptsInParts

    def graded(self, answer: str, references: Sequence[str]) -> dict[str, Any]:
        return super().graded(answer, references) | dict(self.prompts.also(answer, references))


def texts_of(lm: Any, out: kvjax.Decoded, examples: Sequence[Example]) -> list[str]:
    """What each row answered to its example, without the stop token that ended it."""
    answers = zip(out.tokens, out.lengths, examples, strict=True)
    return [continuation(lm, example.prefix, _before_stop(row[: int(n)], example.stop)) for row, n, example in answers]


def _before_stop(row: Sequence[int], stop: Sequence[int]) -> list[int]:
    """The tokens of an answer without the stop token that ended it."""
    ids = [int(i) for i in row]
    return ids[:-1] if ids and ids[-1] in stop else ids
