"""Recall with noise: half of the pairs have keys that are never asked for, the upper half of all keys.

As `recall`; whoever reads a pair can know by its key whether it is worth keeping.
"""

import random
from typing import Any

from experiments.train.data.recall import drawn, written
from kvjax.train import Example

#: Nothing is taken from a text; the name of a split stands for it.
READS_TEXT = False


def examples(lm: Any, text: str, *, count: int, length: int, seed: int) -> list[Example]:
    """`count` texts of length // 2 pairs, half of them noise, and a question for each of the others.

    Args:
        text: the name of the split; text i is the same for one split, seed and length.

    Raises:
        ValueError: `length`, or the vocabulary, is too small for two pairs.
    """
    return drawn("marked", _example, lm, text, count=count, length=length, seed=seed)


def _example(keys: int, pairs: int, draw: random.Random) -> Example:
    asked = draw.sample(range(keys // 2), pairs // 2)
    noise = draw.sample(range(keys // 2, keys), pairs // 2)
    return written(draw.sample(asked + noise, pairs), draw.sample(asked, len(asked)), keys, draw)
