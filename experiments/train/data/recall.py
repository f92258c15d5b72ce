"""Recall: pairs of a value and its key, then every key once more, in another order, each with its value, which is labelled.

    v3 k7  v1 k2  v9 k4     k2 v1  k7 v3  k4 v9

Tokens are drawn at random: keys from the lower half of the vocabulary, each at most once a text, values from the upper half. In a
pair the value comes first, so that a key's place can hold it; a question is a key, and the answer its value.
"""

import random
from typing import Any

from kvjax.train import Example

#: Nothing is taken from a text; the name of a split stands for it.
READS_TEXT = False


def examples(lm: Any, text: str, *, count: int, length: int, seed: int) -> list[Example]:
    """`count` texts of length // 4 pairs, or of as many as there are keys; text i is the same for one seed, length and split.

    Args:
        text: the name of the split.

    Raises:
        ValueError: `length` is too short for a pair and its question.
    """
    half = lm.decoder.vocab // 2
    pairs = min(length // 4, half)
    if pairs < 1:
        raise ValueError(f"{length} tokens hold no pair and its question, or {lm.decoder.vocab} ids no key: change --length")
    return [_example(half, pairs, random.Random(f"{seed}/train/recall/{text}/{length}/{i}")) for i in range(count)]


def _example(half: int, pairs: int, draw: random.Random) -> Example:
    keys = draw.sample(range(half), pairs)
    values = [draw.randrange(half, 2 * half) for _ in keys]
    asked = draw.sample(range(pairs), pairs)
    told = [i for key, value in zip(keys, values, strict=True) for i in (value, key)]
    answered = [i for at in asked for i in (keys[at], values[at])]
    return Example(tuple(told + answered), (False,) * len(told) + (False, True) * pairs)
