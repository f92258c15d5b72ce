"""What the artefacts read that methods were given in this process, by their origin: stages keep an origin alone."""

from collections.abc import Mapping
from typing import NamedTuple


class Source(NamedTuple):
    """What an artefact's header says of its text.

    Attributes:
        data: source, sha256, samples, tokens, split.   passages: a sketch of the text (`experiments.passages`), "" without one.
    """

    data: Mapping[str, object]
    passages: str


_GIVEN: dict[str, Source] = {}


def note(origin: str, data: Mapping[str, object], passages: str) -> None:
    """Remember what the artefact of this origin read; equal origins are equal tables."""
    _GIVEN[origin] = Source(data, passages)


def sources(words: str) -> dict[str, Source]:
    """origin → what it read, of every artefact whose origin stands in `words`: `policy.in_full()` has those of its stages.

    Example:
        >>> import kvjax
        >>> from kvjax.artefacts.sources import sources
        >>> policy = kvjax.methods.compresskv(artefact="smollm2-135m")
        >>> [source.data["split"] for source in sources(policy.in_full()).values()]
        ['calibration']
    """
    return {origin: source for origin, source in _GIVEN.items() if origin in words}
