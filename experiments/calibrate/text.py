"""Stretches of text as calibration samples."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.passages import sketch
from experiments.tasks.text import Haystack
from kvjax.artefacts.artefact import Artefact, model_facts

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


def check_samples(lm: Any, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for `samples` stretches of `length` tokens that the model cannot read, or of which there are none."""
    if settings["samples"] < 1 or not 2 <= settings["length"] <= lm.decoder.max_positions:
        raise ValueError(f"expected 1 sample or more of 2 to {lm.decoder.max_positions} tokens, got {dict(settings)}")


def described(samples: Sequence[Sequence[int]], source: str) -> dict[str, Any]:
    """What an artefact's header says of its data."""
    digest = hashlib.sha256(b"".join(b"%d," % i for ids in samples for i in [*ids, -1])).hexdigest()
    return {"source": source, "sha256": digest, "samples": len(samples), "tokens": sum(map(len, samples))}


def artefact(
    method: str, lm: Any, texts: Sequence[Haystack], samples: Sequence[Sequence[int]],
    settings: Mapping[str, Any], tables: Mapping[str, np.ndarray],
) -> Artefact:  # fmt: skip
    """An artefact that says which samples of which texts it read, and holds a sketch of those texts.

    Args:
        texts: what the samples were cut from; all of their passages count as read.
    """
    data = described(samples, ", ".join(text.source for text in texts)) | split_of(texts)
    return Artefact(method, model_facts(lm), data, dict(settings), tables, sketch(*(text.text for text in texts)))


def split_of(texts: Sequence[Haystack]) -> dict[str, str]:
    """The texts' splits and digests, as an artefact's header has them."""
    return {"split": ", ".join(text.split for text in texts), "text": ", ".join(text.digest for text in texts)}
