"""Stretches of text that the model itself goes on with, greedily: the continuation is labelled."""

from typing import Any

import kvjax
from experiments.calibrate.text import stretches
from experiments.tasks.chat import encode_plain
from kvjax.train import Example

#: Rows that are decoded together.
_ROWS = 16


def examples(lm: Any, text: str, *, count: int, length: int, seed: int) -> list[Example]:
    """`count` stretches, evenly spaced: three quarters of `length` are text, the rest the model's answer, up to where it ends.

    Args:
        seed: not used: stretches are evenly spaced, and decoding is greedy.

    Raises:
        ValueError: the text or `length` is too short.
    """
    del seed
    new = length // 4
    if new < 1:
        raise ValueError(f"{length} tokens have no room for an answer: raise --length")
    prompts = stretches(encode_plain(lm, text), count, length - new)
    made: list[Example] = []
    for at in range(0, count, _ROWS):
        rows = prompts[at : at + _ROWS]
        out = kvjax.generate(lm, rows, kvjax.methods.full(), max_new_tokens=new)
        answers = zip(rows, out.tokens.tolist(), out.lengths.tolist(), strict=True)  # behind its end a row is filled up
        made += [continued(prompt, answer[:n]) for prompt, answer, n in answers]
    return made


def continued(prompt: list[int], answer: list[int]) -> Example:
    """A prompt and its answer, which is labelled."""
    return Example((*prompt, *answer), (False,) * len(prompt) + (True,) * len(answer))
