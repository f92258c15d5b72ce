"""A key from before a long count: a number is hidden in essays, the model counts for 1,024 tokens and more, then gives the number.

    score = [the number follows the last number counted];  counted = numbers in order from 1 / last number

The count is as long as it must be for the model's own tokenizer to need 1,024 tokens. In `counting` the model counts; in
`counting_given` the count is fed to it token by token, as if it had, for models that cannot: either way 1,024 decode steps lie
between the key and its use, which is what a policy that evicts while decoding has to survive.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from experiments.tasks.chat import encode_plain
from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.essays import between, sentences
from experiments.tasks.example import Example
from experiments.tasks.generated import Generated
from experiments.tasks.niah import places
from experiments.tasks.words import WORDS

#: Tokens that the count has at least.
COUNTED = 1024
INTRODUCTION = "A code is hidden within the following text. Memorize it. You will count first and need the code afterwards.\n\n"
KEY = "The code of the {word} is {number}."
QUESTION = "\n\nCount from 1 to {last}, a number a line. Then give the code of the {word}."
CODE = "The code of the {word} is"


@dataclass(frozen=True)
class Counting(Generated):
    """`given`: the count is fed; the answer is the code alone."""

    NAME: str = "counting"
    given: bool = False

    @property
    def new_tokens(self) -> int:
        """Room for the code; `build` adds that for the count."""
        return 24 if self.given else 48

    def drafts(self, request: Request) -> Drafts:
        return Drafts(partial(self._write, request, last_number(request.lm)))

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the code stands in what follows the last number on a line of its own (given: in the answer)."""
        code, last = references
        rest = answer if self.given else re.split(rf"^{last}\s*$", answer, maxsplit=1, flags=re.MULTILINE)[1:]
        return float(re.search(rf"\b{code}\b", "".join(rest)) is not None)

    def also(self, answer: str, references: Sequence[str]) -> dict[str, float]:
        """How far the answer counts; nothing where the count is given."""
        if self.given:
            return {}
        lines, last = answer.strip().split("\n"), int(references[1])
        wrong = next((at for at, line in enumerate(lines) if line.strip() != str(at + 1)), len(lines))
        return {"counted": min(wrong, last) / last}

    def build(self, request: Request, draft: Draft, mode: str) -> Example:
        made = super().build(request, draft, mode)
        counted = 0 if self.given else len(encode_plain(request.lm, numbers(int(draft.references[1]))))
        return replace(made, new_tokens=counted + self.new_tokens)

    def _write(self, request: Request, last: int, amount: int) -> Draft:
        draw = request.draw("counting")
        word, code, depth = draw.choice(WORDS), str(draw.randrange(10**4, 10**5)), draw.random() / 2
        parts = sentences(request.essay(amount))
        text = INTRODUCTION + between(parts, [KEY.format(word=word, number=code)], places(parts, [depth]))
        opening = numbers(last) + CODE.format(word=word) if self.given else ""
        question = QUESTION.format(last=last, word=word)
        return Draft(text, question, opening, (code, str(last)), {"depth": depth, "last": last})


def numbers(last: int) -> str:
    """1 .. last, a line each."""
    return "".join(f"{i}\n" for i in range(1, last + 1))


def last_number(lm: Any) -> int:
    """The first multiple of 10 up to which counting needs 1,024 tokens."""
    return next(last for last in count(10, 10) if len(encode_plain(lm, numbers(last))) >= COUNTED)


COUNTING = Counting()
GIVEN = Counting("counting_given", given=True)
