"""How a benchmark's own prompt is compressed, where kvpress has no rules for it: divided at its question, or whole.

SPLIT  what comes before the question is cut at its end to `length` tokens and compressed; the question follows whole
WHOLE  all of the prompt is compressed, and none of it is cut
"""

from dataclasses import dataclass
from typing import Any

from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.protocol import Asked, Cut, Rules, TwoRules


@dataclass(frozen=True)
class Split:
    """Context compressed, question after it; seen, the question is compressed too.

    The context begins with the chat template's opening, which `length` counts. `Asked.mark` stands where a context was cut.
    """

    name: str = "split"
    MODES: tuple[str, ...] = ("unseen", "seen")

    def rules(self, task: TwoRules) -> Rules:
        return task.official()

    def cut(self, lm: Any, asked: Asked, length: int, mode: str) -> Cut:
        """The prompt; the question is never cut. Raises ValueError where the mark of a cut needs more than `length`."""
        del mode
        before, after = frame(lm, thinking=asked.thinking)
        ids, mark = encode_plain(lm, before + asked.context), encode_plain(lm, asked.mark)
        dropped = 0
        if len(ids) > length:
            if len(mark) >= length:
                raise ValueError(f"length {length} is too short: what marks a cut needs {len(mark)} tokens")
            dropped = len(ids) - (length - len(mark))
            ids = [*ids[: length - len(mark)], *mark]
        question, prefix = encode_plain(lm, asked.question), encode_plain(lm, after + asked.prefix)
        return Cut(tuple(ids), tuple(question), tuple(prefix), dropped)


@dataclass(frozen=True)
class Whole:
    """The prompt is one text, compressed as it is: for tasks whose long part is the answer."""

    name: str = "whole"
    MODES: tuple[str, ...] = ("seen",)

    def rules(self, task: TwoRules) -> Rules:
        return task.official()

    def cut(self, lm: Any, asked: Asked, length: int, mode: str) -> Cut:
        """The prompt in the chat template, whose end is fed after it. Raises ValueError for one longer than `length`."""
        del mode
        before, after = frame(lm, thinking=asked.thinking)
        ids = encode_plain(lm, before + asked.context + asked.question)
        if len(ids) > length:
            raise ValueError(f"this prompt has {len(ids)} tokens and is never cut, --lengths says {length}: ask for a longer one")
        return Cut(tuple(ids), (), tuple(encode_plain(lm, after + asked.prefix)), 0)


SPLIT = Split()
WHOLE = Whole()
