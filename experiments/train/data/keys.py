"""Several keys: magic numbers of several words hidden in a text, one of them asked for; its number is labelled."""

import random
from typing import Any

from experiments.tasks.chat import encode_plain
from experiments.tasks.words import WORDS
from experiments.train.data.passkeys import buried, joined
from kvjax.train import Example

#: Keys of a text, one of them asked for.
KEYS = 4


def examples(lm: Any, text: str, *, count: int, length: int, seed: int) -> list[Example]:
    """`count` texts of `length` tokens at most; text i is the same wherever it is made of one seed and length.

    Raises:
        ValueError: `length` is too short for the keys, or the text too short for `length`.
    """
    ids = encode_plain(lm, text)
    return [_example(lm, ids, length, random.Random(f"{seed}/train/keys/{length}/{i}")) for i in range(count)]


def _example(lm: Any, ids: list[int], length: int, draw: random.Random) -> Example:
    words = draw.sample(WORDS, KEYS)
    numbers = [str(draw.randrange(10**6, 10**7)) for _ in words]
    hidden = [encode_plain(lm, f" The secret number of the {w} is {n}.") for w, n in zip(words, numbers, strict=True)]
    at = draw.randrange(KEYS)
    asked = encode_plain(lm, f"\n\nThe secret number of the {words[at]} is")
    answer = encode_plain(lm, f" {numbers[at]}.")
    room = length - sum(map(len, hidden)) - len(asked) - len(answer)
    if not 0 < room <= len(ids):
        raise ValueError(f"keys leave {room} of {length} tokens for text, of which there are {len(ids)}: change --length")
    begin = draw.randrange(len(ids) - room + 1)
    body = buried(ids[begin : begin + room], hidden, sorted(draw.uniform(0.05, 0.95) for _ in hidden))
    return joined([(body, False), (asked, False), (answer, True)])
