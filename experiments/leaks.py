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
    for why in refused(cells, text, what).values():
        raise ValueError(why)


def refused(cells: Iterable[Named], text: str, what: str) -> dict[str, str]:
    """name → why, of the cells that may not be measured on `text`."""
    behind = [(cell.name, found) for cell in cells for found in sources(cell.policy.in_full()).items()]
    there = hashes(text) if behind else None
    wrong = [(name, _wrong(origin, source, there, what)) for name, (origin, source) in behind]
    return {name: f"{name}: {why}: {_ADVICE}" for name, why in wrong if why}


_ADVICE = "make one with `kvjax calibrate` without --text, whose text is apart from the haystack, or evaluate on another --text"


def _wrong(origin: str, source: Source, there: Hashes, what: str) -> str | None:
    if not source.passages:
        return f"its artefact ({origin}) does not say what it read, so it may have read {what}"
    count, of = shared(source.passages, there), len(source.passages) // 16
    return f"its artefact ({origin}) read {what}: {count} of the {of} passages it keeps stand there" if count else None


def _told(source: Source) -> str:
    data = source.data
    return f"{data.get('split', 'a part')} of {data['source']}, {data.get('text', 'unknown')}" if "source" in data else "unknown"
