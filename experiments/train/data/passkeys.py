"""Passkeys: phrases of random words hidden in a text, repeated at its end; the repeated words are labelled.

Source: DuoAttention, arXiv 2410.10819, section 2.2: 10 passkeys of 32 words at depths of 0.05 to 0.95. Differs: as many passkeys as
fill a quarter of the text, of as many words as that leaves each; the words are our nouns.
"""

import random
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
    return [_example(lm, ids, length, random.Random(f"{seed}/train/passkeys/{length}/{i}")) for i in range(count)]


def _example(lm: Any, ids: list[int], length: int, draw: random.Random) -> Example:
    keys = passkeys(length, draw)
    hidden = [encode_plain(lm, f"\n\nRemember this. The {name} passkey is: {words}.\n\n") for name, words in keys]
    asked = [(encode_plain(lm, f"\nThe {name} passkey is:"), encode_plain(lm, f" {words}.")) for name, words in keys]
    asking = encode_plain(lm, "\n\nAll passkeys that were to be remembered:")
    room = length - sum(map(len, hidden)) - sum(len(cue) + len(key) for cue, key in asked) - len(asking)
    if not 0 < room <= len(ids):
        raise ValueError(f"passkeys leave {room} of {length} tokens for text, of which there are {len(ids)}: change --length")
    begin = draw.randrange(len(ids) - room + 1)
    body = buried(ids[begin : begin + room], hidden, sorted(draw.uniform(0.05, 0.95) for _ in hidden))
    tail = [(asking, False)] + [part for cue, key in asked for part in ((cue, False), (key, True))]
    return joined([(body, False), *tail])


def passkeys(length: int, draw: random.Random) -> list[tuple[str, str]]:
    """Names and words of passkeys that fit a text: a key hidden and repeated takes some four tokens a word, and twenty more."""
    number = max(1, min(KEYS, length // 160))
    words = max(2, min(LONGEST, (length // (2 * number) - 20) // 4))
    return [(_ORDINALS[i], " ".join(draw.choice(WORDS) for _ in range(words))) for i in range(number)]


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
