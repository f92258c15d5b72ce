"""Generated prompts of a wanted length: as much filler as fits, counted by the model's own tokenizer.

    filler = max { n : tokens(template + context(n) + question + prefix) + new_tokens <= length }

found by doubling and bisection. Prompt i of a seed, length and task is the same tokens wherever it is made, given the same
haystack: every draw comes from `random.Random(f"{seed}/{task}/{length}/{i}")`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.example import Example

MODES = ("unseen", "seen")


class Generated(ABC):
    """A task whose prompts are generated; `Answering(task)` puts it in a sweep.

    Attributes:
        NAME: of the task.   MODES: when the question is known.   new_tokens: tokens generated for the answer, at most.
    """

    NAME: str
    MODES: tuple[str, ...] = MODES
    new_tokens: int

    @abstractmethod
    def drafts(self, request: Request) -> Drafts:
        """The prompt asked for, of any size."""

    @abstractmethod
    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Score of an answer, from 0 to 1."""

    def examples(
        self, lm: Any, length: int, count: int, seed: int, *, haystack: Sequence[int], mode: str, start: int = 0
    ) -> Iterator[Example]:
        """Prompts `start` .. `count - 1`, each with its answer at most `length` tokens and one unit of filler short of it.

        Raises:
            ValueError: unknown mode, a length too short for the task or too long for the text it is made of.
        """
        check_mode(mode)
        for index in range(start, count):
            yield self._fitted(Request(lm, length, seed, index, haystack), mode)

    def build(self, request: Request, draft: Draft, mode: str) -> Example:
        """The draft as token ids between the halves of the model's chat template."""
        before, after = frame(request.lm)

        def encode(text: str) -> tuple[int, ...]:
            return tuple(encode_plain(request.lm, text))

        return Example(
            task=self.NAME,
            mode=mode,
            length=request.length,
            index=request.index,
            context=encode(before + draft.context),
            question=encode(draft.question),
            prefix=encode(after + draft.prefix),
            references=draft.references,
            new_tokens=self.new_tokens,
            stop=tuple(request.lm.stop_ids),
            meta=draft.meta,
        )

    def _fitted(self, request: Request, mode: str) -> Example:
        drafts = self.drafts(request)

        def made(amount: int) -> Example:
            return self.build(request, drafts.write(amount), mode)

        def fits(amount: int) -> bool:
            return amount <= drafts.most and total(made(amount)) <= request.length

        if not fits(drafts.least):
            needed = total(made(drafts.least))
            raise ValueError(f"length {request.length} is too short for {self.NAME}: this prompt needs {needed} tokens")
        amount = largest(fits, drafts.least)
        if amount == drafts.most:
            raise ValueError(f"length {request.length} is too long for {self.NAME}: {drafts.scarce}")
        return made(amount)


def total(example: Example) -> int:
    """Positions that a prompt and its answer take."""
    return len(example.compressed) + example.room


def largest(fits: Callable[[int], bool], least: int) -> int:
    """The largest n >= least with fits(n), if fits(least), and fits never turns true again after it turned false."""
    found, step = least, 1
    while fits(found + step):
        found, step = found + step, 2 * step
    while step > 1:
        step //= 2
        found += step if fits(found + step) else 0
    return found


def check_mode(mode: str) -> None:
    """Raises ValueError for a question mode that no task with questions has."""
    if mode not in MODES:
        raise ValueError(f"question mode {mode!r} is none of {', '.join(MODES)}")
