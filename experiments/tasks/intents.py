"""Few-shot classification with labels that mean nothing: what a text is about decides its label, and only the examples say how.

    score = [the answer's first word is the label]

Six topics, each with a label drawn for the prompt; as many worked examples as fit the length, every
topic once before any comes again. Shaped after the many-shot classification of HELMET (Yen et al., 2024, section 2, in-context
learning), whose labels are numbers for the same reason. Texts are made of the words below.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.generated import Generated
from experiments.tasks.words import WORDS

TOPICS = {
    "weather": ("rain", "storm", "cloud", "sunshine", "snow", "fog", "thunder", "wind", "frost", "drizzle"),
    "cooking": ("oven", "recipe", "soup", "flour", "butter", "kitchen", "spice", "pan", "dough", "stew"),
    "sport": ("match", "goal", "coach", "stadium", "referee", "training", "league", "trophy", "racket", "marathon"),
    "money": ("bank", "loan", "salary", "tax", "invoice", "budget", "coin", "price", "debt", "savings"),
    "travel": ("train", "airport", "ticket", "hotel", "luggage", "passport", "ferry", "tour", "map", "border"),
    "health": ("doctor", "fever", "clinic", "pill", "nurse", "cough", "bandage", "vaccine", "pulse", "allergy"),
}
FORMS = (
    "Yesterday we talked about the {} and the {}.", "Is there anything new about the {} or the {}?",
    "My neighbour asked me about a {} and a {}.", "Please tell me more about that {} and that {}.",
    "I read a long story about a {} and its {}.", "Nobody expected the {} to matter more than the {}.",
)  # fmt: skip
INTRODUCTION = "Every text has a label. Learn from the examples which texts have which label.\n\n"
SHOT = "Text: {text}\nLabel: {label}\n\n"


@dataclass(frozen=True)
class Intents(Generated):
    """The filler is counted in worked examples."""

    NAME: str = "intents"
    new_tokens: ClassVar[int] = 8

    def drafts(self, request: Request) -> Drafts:
        return Drafts(partial(self._write, request), least=len(TOPICS))

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the first word of the answer, marks around it aside, is the label."""
        words = answer.split()
        return float(bool(words) and words[0].strip(".,:;!\"'*()").lower() == references[0])

    def _write(self, request: Request, amount: int) -> Draft:
        draw = request.draw(self.NAME)
        labels = dict(zip(TOPICS, draw.sample(WORDS, len(TOPICS)), strict=True))
        topic = draw.choice(list(TOPICS))
        asked = text_about(topic, draw)
        shots = [SHOT.format(text=text_about(about, draw), label=labels[about]) for about in islice(topics(draw), amount)]
        meta = {"topic": topic, "shots": amount}
        return Draft(INTRODUCTION + "".join(shots), f"Text: {asked}", "\nLabel:", (labels[topic],), meta)


def topics(draw: random.Random) -> Iterator[str]:
    """All topics in a drawn order, over and over."""
    while True:
        yield from draw.sample(list(TOPICS), len(TOPICS))


def text_about(topic: str, draw: random.Random) -> str:
    """A sentence with two of the topic's words."""
    return draw.choice(FORMS).format(*draw.sample(TOPICS[topic], 2))


INTENTS = Intents()
