"""Recall: pairs of a key and a value, then half of the keys, each followed by its value, which is labelled.

    (k7 v3) (k2 v1) (k4 v9) (k1 v9)     k2 v1  k4 v9

A pair is one token, so that one attention can find it. With K = ⌊√(vocabulary + 1)⌋ - 1 keys and as many values, the first K² ids
are pairs, the next K keys, the next K values. Keys are drawn without repetition, values with it.
"""

import random
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

from kvjax.train import Example

#: Nothing is taken from a text; the name of a split stands for it.
READS_TEXT = False


def examples(lm: Any, text: str, *, count: int, length: int, seed: int) -> list[Example]:
    """`count` texts of length // 2 pairs (or of as many as there are keys) and half as many questions.

    Args:
        text: the name of the split; text i is the same for one split, seed and length.

    Raises:
        ValueError: `length`, or the vocabulary, is too small for two pairs.
    """
    return drawn("recall", _example, lm, text, count=count, length=length, seed=seed)


def drawn(
    kind: str, make: Callable[[int, int, random.Random], Example], lm: Any, text: str, *, count: int, length: int, seed: int
) -> list[Example]:
    """`make(keys, pairs, draw)` so many times: text i is the same for one kind, split, seed and length."""
    keys, pairs = sizes(lm, length)
    draws = (random.Random(f"{seed}/train/{kind}/{text}/{length}/{i}") for i in range(count))
    return [make(keys, pairs, draw) for draw in draws]


def sizes(lm: Any, length: int) -> tuple[int, int]:
    """(K, pairs of a text, an even number)."""
    keys = isqrt(lm.decoder.vocab + 1) - 1
    pairs = min(length // 2, keys) // 2 * 2
    if pairs < 2:
        raise ValueError(f"{length} tokens, or {lm.decoder.vocab} ids, hold no two pairs and a question: change --length")
    return keys, pairs


def _example(keys: int, pairs: int, draw: random.Random) -> Example:
    held = draw.sample(range(keys), pairs)
    return written(held, draw.sample(held, pairs // 2), keys, draw)


def written(held: Sequence[int], asked: Sequence[int], keys: int, draw: random.Random) -> Example:
    """The text whose pairs have the keys `held`, in this order, and which asks for the keys `asked`."""
    value = {key: draw.randrange(keys) for key in held}
    told = [key * keys + value[key] for key in held]
    answered = [i for key in asked for i in (keys * keys + key, keys * keys + keys + value[key])]
    return Example(tuple(told + answered), (False,) * len(told) + (False, True) * len(asked))
