"""Passkeys: phrases of random words hidden in a text, repeated at its end; the repeated words are labelled.

Source: DuoAttention, arXiv 2410.10819, section 2.2: 10 passkeys of 32 words at depths of 0.05 to 0.95. Differs: no more passkeys,
and of no more words, than leave a quarter of the text to hide them in; the words are our nouns.
"""

import random
from collections.abc import Iterator
from typing import Any

from experiments.tasks.chat import encode_plain
from experiments.tasks.words import WORDS
from kvjax.train import Example

#: Passkeys of a text and words of each, at most.
KEYS, LONGEST = 10, 32
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def examples(lm: Any, text: str, *, count: int, length: int, seed: int) -> list[Example]:
    """`count` texts of `length` tokens at most; text i is the same wherever it is made of one seed and length.

    Raises:
        ValueError: `length` is too short for a passkey, or the text too short for `length`.
    """
    ids = encode_plain(lm, text)
    return [_example(lm, ids, length, f"{seed}/train/passkeys/{length}/{i}") for i in range(count)]


def _example(lm: Any, ids: list[int], length: int, name: str) -> Example:
    """The largest passkeys that leave a quarter of the text to hide them in."""
    for number, words in sizes(length):
        draw = random.Random(name)
        hidden, tail = written(lm, number, words, draw)
        room = length - sum(map(len, hidden)) - sum(len(part) for part, _ in tail)
        if 0 < length // 4 <= room <= len(ids):
            begin = draw.randrange(len(ids) - room + 1)
            body = buried(ids[begin : begin + room], hidden, sorted(draw.uniform(0.05, 0.95) for _ in hidden))
            return joined([(body, False), *tail])
    raise ValueError(f"a passkey leaves {room} of {length} tokens for text, of which there are {len(ids)}: change --length")


def sizes(length: int) -> Iterator[tuple[int, int]]:
    """(passkeys, words of each) from the largest on: first fewer words, then fewer passkeys."""
    most = max(1, min(KEYS, length // 160))
    words = max(2, min(LONGEST, (length // (2 * most) - 20) // 4))
    yield from ((most, n) for n in range(words, 1, -1))
    yield from ((number, 2) for number in range(most - 1, 0, -1))


def written(lm: Any, number: int, words: int, draw: random.Random) -> tuple[list[list[int]], list[tuple[list[int], bool]]]:
    """(the sentences to hide, the text's end: parts and whether they are labelled)."""
    keys = [(name, " ".join(draw.choice(WORDS) for _ in range(words))) for name in _ORDINALS[:number]]
    hidden = [encode_plain(lm, f"\n\nRemember this. The {name} passkey is: {key}.\n\n") for name, key in keys]
    tail = [(encode_plain(lm, "\n\nAll passkeys that were to be remembered:"), False)]
    for name, key in keys:
        tail += [(encode_plain(lm, f"\nThe {name} passkey is:"), False), (encode_plain(lm, f" {key}."), True)]
    return hidden, tail


def buried(text: list[int], parts: list[list[int]], depths: list[float]) -> list[int]:
    """`parts[j]` put in at share `depths[j]` of the text, ascending."""
    made, at = [], 0
    for part, depth in zip(parts, depths, strict=True):
        place = int(depth * len(text))
        made += [*text[at:place], *part]
        at = place
    return made + text[at:]


def joined(parts: list[tuple[list[int], bool]]) -> Example:
    """Parts, each labelled or not."""
    ids = tuple(i for part, _ in parts for i in part)
    return Example(ids, tuple(label for part, label in parts for _ in part))
