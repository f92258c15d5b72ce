"""No leak: a policy made from an artefact is never measured on text that the artefact read.

An artefact holds a sketch of its text (`experiments.passages`); one passage of it in an evaluated text is enough to be refused.
"""

from collections.abc import Iterable
from typing import Any

from experiments.passages import Hashes, hashes, shared
from experiments.policies import Named
from kvjax.artefacts.sources import Source, sources


def read_by(policy: Any) -> dict[str, str]:
    """origin → "SPLIT of SOURCE, DIGEST" of every artefact behind a policy, as rows have it; "unknown" where it does not say."""
    return {origin: _told(source) for origin, source in sources(policy.in_full()).items()}


def refuse(cells: Iterable[Named], text: str, what: str) -> None:
    """See that no artefact behind the cells read any of `text`, which is evaluated on; `what` names it.

    Raises:
        ValueError: one did, or does not say what it read; with what to do.
    """
    behind = [(cell, found) for cell in cells for found in sources(cell.policy.in_full()).items()]
    there = hashes(text) if behind else None
    for cell, (origin, source) in behind:
        _refuse(cell, origin, source, there, what)


def _refuse(cell: Named, origin: str, source: Source, there: Hashes, what: str) -> None:
    artefact = f"{cell.name}: its artefact ({origin})"
    advice = "make one with `kvjax calibrate` without --text, whose text is apart from the haystack, or evaluate on another --text"
    if not source.passages:
        raise ValueError(f"{artefact} does not say what it read, so it may have read {what}: {advice}")
    if count := shared(source.passages, there):
        of = len(source.passages) // 16
        raise ValueError(f"{artefact} read {what}: {count} of the {of} passages it keeps stand there: {advice}")


def _told(source: Source) -> str:
    data = source.data
    return f"{data.get('split', 'a part')} of {data['source']}, {data.get('text', 'unknown')}" if "source" in data else "unknown"
