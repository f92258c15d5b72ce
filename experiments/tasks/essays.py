"""Essays as sentences, and needles put between them."""

import re
from collections.abc import Sequence

#: A sentence ends at . ! or ?, with any closing quotes and brackets, before a space.
_END = re.compile(r"(?<=[.!?])[\"')\]”’]*\s+")


def sentences(text: str) -> list[str]:
    """The sentences of a text whose words are one space apart."""
    ends = [match.end() for match in _END.finditer(text)]
    parts = [text[a:b].rstrip() for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [part for part in parts if part]


def between(parts: Sequence[str], needles: Sequence[str], places: Sequence[int]) -> str:
    """Join `parts` with `needles[j]` before `parts[places[j]]`; needles at one place keep their order."""
    text, at = [], 0
    for place, needle in sorted(zip(places, needles, strict=True), key=lambda pair: pair[0]):
        text += [*parts[at:place], needle]
        at = place
    return " ".join([*text, *parts[at:]])
