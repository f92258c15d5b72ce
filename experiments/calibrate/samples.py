"""Stretches of text to calibrate on, and what an artefact says of them.

Sample i of a seed is the same tokens wherever it is made, given the same text: `random.Random(f"{seed}/calibrate/{length}/{i}")`
draws where it begins within the i-th part of the text.
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack

Prompts = list[list[int]]


def opening(lm: Any) -> list[int]:
    """The beginning-of-sequence id, where the tokenizer puts one before a text."""
    first = lm.tokenizer.encode("a")[:1]
    return first if first and first[0] == lm.tokenizer.inner.bos_token_id else []


def stretches(lm: Any, text: str, length: int, count: int, seed: int) -> Prompts:
    """`count` stretches of `length` tokens, one from each of as many equal parts of the text, so that none overlap.

    Raises:
        ValueError: the text is too short, the model's context too small, or there is nothing to cut.
    """
    start = opening(lm)
    room, ids = length - len(start), encode_plain(lm, text)
    if count < 1 or room < 1:
        raise ValueError(f"{count} samples of {length} tokens are nothing to calibrate on: raise --samples and --length")
    if length > lm.decoder.max_positions:
        raise ValueError(f"samples of {length} tokens do not fit the model's context of {lm.decoder.max_positions}: lower --length")
    part = len(ids) // count
    if part < room:
        raise ValueError(
            f"the text has {len(ids)} tokens, too few for {count} samples of {length}: give a longer --text, or lower --samples or --length"
        )
    begins = (
        i * part + random.Random(f"{seed}/calibrate/{length}/{i}").randrange(part - room + 1) for i in range(count)
    )
    return [start + ids[begin : begin + room] for begin in begins]


def topics() -> Haystack:
    """The standard library's help texts: prose and code that every machine has."""
    from pydoc_data.topics import topics as found

    return Haystack("\n\n".join(found[name] for name in sorted(found)), "pydoc_data.topics")


def described(sources: Iterable[str], prompts: Iterable[Sequence[int]]) -> dict[str, Any]:
    """An artefact's data: where the text is from, the digest of exactly the ids that were read, and how many."""
    prompts = [np.asarray(ids, np.int32) for ids in prompts]
    digest = hashlib.sha256()
    for ids in prompts:
        digest.update(np.int32(len(ids)).tobytes() + ids.tobytes())
    tokens = sum(len(ids) for ids in prompts)
    return {"source": ", ".join(dict.fromkeys(sources)), "sha256": digest.hexdigest(), "samples": len(prompts), "tokens": tokens}
