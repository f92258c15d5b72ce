"""Stretches of text; every token but the first is labelled."""

from typing import Any

from experiments.calibrate.text import stretches
from experiments.tasks.chat import encode_plain
from kvjax.train import Example


def examples(lm: Any, text: str, *, count: int, length: int, seed: int) -> list[Example]:
    """`count` stretches of `length` tokens, evenly spaced and without overlap.

    Args:
        seed: not used: nothing is drawn.

    Raises:
        ValueError: the text is too short.
    """
    del seed
    label = (False,) + (True,) * (length - 1)
    return [Example(tuple(ids), label) for ids in stretches(encode_plain(lm, text), count, length)]
