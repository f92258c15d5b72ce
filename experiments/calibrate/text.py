"""Stretches of text as calibration samples."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from experiments.tasks.chat import encode_plain

#: (stage, done, total): how a calibration tells how far it is.
Report = Callable[[str, int, int], None]


def stretches(ids: Sequence[int], count: int, length: int) -> list[list[int]]:
    """`count` stretches of `length` tokens, evenly spaced over the text.

    Raises:
        ValueError: the text is too short for stretches that do not overlap.
    """
    if count * length > len(ids):
        raise ValueError(f"{count} samples of {length} tokens need {count * length} tokens of text, there are {len(ids)}")
    step = len(ids) // count
    return [list(ids[i * step : i * step + length]) for i in range(count)]


def topics(lm: Any) -> list[int]:
    """Ids of the standard library's help topics: technical prose, unlike essays."""
    from pydoc_data.topics import topics

    return encode_plain(lm, "\n\n".join(topics[name] for name in sorted(topics)))


def described(samples: Sequence[Sequence[int]], source: str) -> dict[str, Any]:
    """What an artefact's header says of its data."""
    digest = hashlib.sha256(b"".join(b"%d," % i for ids in samples for i in [*ids, -1])).hexdigest()
    return {"source": source, "sha256": digest, "samples": len(samples), "tokens": sum(map(len, samples))}
