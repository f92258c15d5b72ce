"""Prompts that hide a sentence in a long text and ask for it: what CompressKV watches its heads on.

Source of the layout: CompressKV, arXiv 2508.02401, its released calibration: 3 needles with a haystack each, lengths x depths, the
needle at a share of the tokens, moved back to the end of a sentence; the end of the prompt opens the answer. We differ: the
sentences are ours, the chat template is used where there is one, and the answer's opening words are given.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.tasks.chat import encode_plain, frame
from kvjax.calibrate.compresskv import NeedleRun


class Needle(NamedTuple):
    """A sentence, the question it answers, how the answer opens, and the span that is then to be copied."""

    sentence: str
    question: str
    cue: str
    answer: str


NEEDLES = (
    Needle(
        " The best thing to do in Lisbon is to ride the old yellow tram up to the castle and eat custard tarts at sunset.",
        "What is the best thing to do in Lisbon?",
        "The best thing to do in Lisbon is to",
        " ride the old yellow tram up to the castle and eat custard tarts at sunset",
    ),
    Needle(
        " The harbour report of last spring found that most fishing boats leaked because cheap copper nails had rusted.",
        "What did the harbour report of last spring find?",
        "The harbour report of last spring found that",
        " most fishing boats leaked because cheap copper nails had rusted",
    ),
    Needle(
        " Martha never visits the corner bakery because its owner once laughed at her wooden bicycle and her green hat.",
        "Why does Martha never visit the corner bakery?",
        "Martha never visits the corner bakery because",
        " its owner once laughed at her wooden bicycle and her green hat",
    ),
)


def runs(lm: Any, haystack: Sequence[int], *, lengths: Sequence[int], depths: Sequence[float], seed: int) -> Iterator[NeedleRun]:
    """Every needle at every length and depth; the same stretch of text at all depths.

    Args:
        haystack: ids of the text.   lengths: of the whole prompts, in tokens.   depths: shares of the text before the needle.

    Raises:
        ValueError: a length too short for a needle, or too long for the haystack.
    """
    stop = (encode_plain(lm, "\n")[-1], *lm.stop_ids)
    for number, needle in enumerate(NEEDLES):
        head, tail = around(lm, needle)
        sentence, answer = encode_plain(lm, needle.sentence), encode_plain(lm, needle.answer)
        for length in lengths:
            room = length - len(head) - len(sentence) - len(tail)
            _check_room(length, room, len(haystack))
            begin = random.Random(f"{seed}/calibrate/needle/{number}/{length}").randrange(len(haystack) - room + 1)
            text = list(haystack[begin : begin + room])
            yield from (NeedleRun([*head, *hide(lm, text, sentence, depth), *tail], answer, stop) for depth in depths)


def around(lm: Any, needle: Needle) -> tuple[list[int], list[int]]:
    """Ids before the text, and after it up to where the answer is copied."""
    before, after = frame(lm)
    head = encode_plain(lm, before) if lm.tokenizer.inner.chat_template else opening(lm)
    ask = f"\n\nAnswer from the text above. {needle.question}{after}{needle.cue}"
    return head, encode_plain(lm, ask)


def opening(lm: Any) -> list[int]:
    """The beginning-of-sequence id, where the tokenizer puts one before a text."""
    first = lm.tokenizer.encode("a")[:1]
    return first if first == [lm.tokenizer.inner.bos_token_id] else []


def hide(lm: Any, text: list[int], needle: list[int], depth: float) -> list[int]:
    """The needle after the last full stop of the text's first `depth`, at `depth` where there is none; 1.0: at the end."""
    at = wanted = int(depth * len(text))
    while 0 < at < len(text) and not lm.decode([text[at - 1]]).rstrip().endswith("."):
        at -= 1
    at = at or wanted
    return text[:at] + needle + text[at:]


def spread(shortest: int, longest: int, count: int) -> list[int]:
    """`count` whole numbers from shortest to longest, evenly spaced; the longest alone where count is 1."""
    return sorted({round(x) for x in np.linspace(longest, shortest, count)})


def _check_room(length: int, room: int, available: int) -> None:
    if room < 1:
        raise ValueError(f"a prompt of {length} tokens is too short for a needle: {1 - room} more are needed")
    if available < room:
        raise ValueError(f"the text has {available} tokens, too few for a prompt of {length}: give a longer --text")
