"""A needle that shares no word with its question: who was it, where the text names a thing and the question what follows from it.

    needle    Marlon Quist lives around the corner from the Eiffel Tower.
    question  Which character has a home in Paris?            literal twin: ... next to the Eiffel Tower?
    score = [the answer contains the name]

Needles of other people and other things stand by as distractors. `paraphrase_literal` asks the same prompts by the thing itself:
the gap between the two is what lexical matching gives. The task family is that of NoLiMa (Modarressi et al., 2025, arXiv
2502.05167, ICML 2025); its needles and books are licensed for research only, and these are our own. Facts are common knowledge:
landmark and city, dish and country, tool and profession.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.essays import between, sentences
from experiments.tasks.generated import Generated
from experiments.tasks.niah import places
from experiments.tasks.ruler.match import string_match_part


@dataclass(frozen=True)
class Kind:
    """How facts of a kind are told and asked for: {name}, {thing} and, in the question, {meaning}."""

    needle: str
    question: str
    literal: str
    facts: tuple[tuple[str, str], ...]


KINDS = (
    Kind(
        "{name} lives around the corner from {thing}.",
        "Which character has a home in {meaning}?",
        "Which character lives around the corner from {thing}?",
        (
            ("the Eiffel Tower", "Paris"), ("the Colosseum", "Rome"), ("Big Ben", "London"), ("the Statue of Liberty", "New York"),
            ("the Brandenburg Gate", "Berlin"), ("the Acropolis", "Athens"), ("the Kremlin", "Moscow"),
            ("the Sagrada Familia", "Barcelona"),
        ),
    ),
    Kind(
        "{name} grew up eating {thing} every weekend.",
        "Which character spent a childhood in {meaning}?",
        "Which character grew up eating {thing}?",
        (
            ("sushi", "Japan"), ("paella", "Spain"), ("lasagna", "Italy"), ("tacos", "Mexico"), ("goulash", "Hungary"),
            ("kimchi", "Korea"), ("borscht", "Ukraine"), ("moussaka", "Greece"),
        ),
    ),
    Kind(
        "{name} never leaves the house without {thing}.",
        "Which character works as a {meaning}?",
        "Which character never goes anywhere without {thing}?",
        (
            ("a stethoscope", "doctor"), ("a fishing net", "fisherman"), ("a pair of handcuffs", "policeman"),
            ("an anvil", "blacksmith"), ("a chimney brush", "sweep"), ("a conductor's baton", "musician"),
            ("a rolling pin", "baker"), ("a plough", "farmer"),
        ),
    ),
)  # fmt: skip
NAMES = (
    "Marlon Quist", "Ottilie Brandt", "Percival Osei", "Yasmin Dahl", "Caspian Ruiz", "Henrike Tolsen", "Bartholomew Ngo",
    "Liora Petrescu", "Ignatius Moreau", "Saoirse Kelm", "Thaddeus Okafor", "Mireille Vance",
)  # fmt: skip
INTRODUCTION = "Read the following text. I will ask you about one of its characters afterwards.\n\n"
ASKED = " Answer with the name alone."


@dataclass(frozen=True)
class Paraphrase(Generated):
    """`literal`: the question names the needle's thing; `distractors`: needles of the same kind about others."""

    NAME: str = "paraphrase"
    literal: bool = False
    distractors: int = 2
    new_tokens: ClassVar[int] = 16

    def __post_init__(self) -> None:
        if not 0 <= self.distractors < 8:
            raise ValueError(f"a kind has 8 facts: 0 to 7 distractors; got {self.distractors}")

    def drafts(self, request: Request) -> Drafts:
        return Drafts(partial(self._write, request), least=self.distractors + 2)

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the answer contains the name, in either case."""
        return string_match_part(answer, references)

    def _write(self, request: Request, amount: int) -> Draft:
        draw = request.draw("paraphrase")
        kind = draw.choice(KINDS)
        facts = draw.sample(kind.facts, self.distractors + 1)
        names, depths = draw.sample(NAMES, len(facts)), [draw.random() for _ in facts]
        needles = [kind.needle.format(name=name, thing=thing) for name, (thing, _) in zip(names, facts, strict=True)]
        parts = sentences(request.essay(amount))
        text = INTRODUCTION + between(parts, needles, places(parts, depths))
        thing, meaning = facts[0]
        question = (kind.literal if self.literal else kind.question).format(thing=thing, meaning=meaning)
        return Draft(text, f"\n\n{question}{ASKED}", "", (names[0],), {"depth": depths[0]})


PARAPHRASE = Paraphrase()
LITERAL = Paraphrase("paraphrase_literal", literal=True)
