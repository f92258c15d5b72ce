"""JSON key-value retrieval: one object of random UUIDs, one of its keys asked for.

Source: Liu et al., 2023, "Lost in the Middle: How Language Models Use Long Contexts", section 3 (kv_retrieval.prompt,
make_kv_retrieval_data.py, evaluate_kv_responses.py), whose wording is kept. We differ: the number of pairs is the largest
that fits the length, where the paper has 75, 140 and 300; the pair asked for is drawn evenly from all, and its place, from 0
to 1, goes into `meta["depth"]`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.generated import Generated
from experiments.tasks.ruler.kinds import UUIDS
from experiments.tasks.ruler.match import string_match_part

INTRODUCTION = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
QUESTION = '\n\nKey: "{key}"'
PREFIX = "Corresponding value:"


@dataclass(frozen=True)
class KeyValue(Generated):
    """A value of a JSON object; the amount of filler is the number of pairs."""

    NAME: str = "keyvalue"
    new_tokens: ClassVar[int] = 100

    def drafts(self, request: Request) -> Drafts:
        return Drafts(partial(self._write, request), least=2)

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the answer contains the value, in either case."""
        return string_match_part(answer, references)

    def _write(self, request: Request, amount: int) -> Draft:
        draw = request.draw(self.NAME)
        wanted = draw.random()
        made = list(islice(UUIDS.distinct(draw), 2 * amount))
        pairs = list(zip(made[::2], made[1::2], strict=True))
        at = int(wanted * amount)
        key, value = pairs[at]
        text = "{" + ",\n ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in pairs) + "}"
        meta = {"depth": at / (amount - 1), "pairs": amount}
        return Draft(INTRODUCTION + text, QUESTION.format(key=key), PREFIX, (value,), meta)


KEY_VALUE = KeyValue()
