"""Text to train on and to calibrate on, apart from text that is evaluated on: named splits that share no run of words with it.

A text is cut at empty lines. A paragraph that has twelve words in a row in common with the haystack of the tasks is left out,
whatever the source. What remains is "held-out" where the first byte of its SHA-256 is below 51 (a fifth), "calibration" where it is
below 102 (a fifth), "train" elsewhere: a paragraph's split depends on its words alone, so that a longer text moves none.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from experiments.passages import runs
from experiments.provenance import digest
from experiments.tasks.text import Haystack, haystack

#: In the order in which they are filled: a paragraph that shares a run of words with an earlier split is left out.
SPLITS = ("calibration", "held-out", "train")
TOPICS = "pydoc_data.topics and docstrings of the standard library"


@dataclass(frozen=True)
class Split:
    """A named part of a text.

    Attributes:
        text: its paragraphs, an empty line between them.   source, name: of the whole text, of the split.
        avoided: digest of the haystack it shares nothing with.   dropped: paragraphs of the text that are in no split.
    """

    text: str
    source: str
    name: str
    avoided: str
    dropped: int

    @property
    def digest(self) -> str:
        return digest([self.text.encode()])


def splits(path: Path | None = None, *, evaluated: Haystack | None = None) -> dict[str, Split]:
    """The paragraphs of each of SPLITS of a text file, by default of the standard library's own documentation.

    Args:
        evaluated: what no paragraph may share words with; by default the haystack of the tasks.

    Raises:
        ValueError: a text that leaves a split empty.
    """
    text = haystack(path) if path is not None else Haystack(documentation(), TOPICS)
    evaluated = haystack() if evaluated is None else evaluated
    known = set(runs(evaluated.text))
    found = [paragraph.strip() for paragraph in text.text.split("\n\n") if paragraph.strip()]
    parts: dict[str, list[str]] = {}
    for name in SPLITS:
        parts[name] = [x for x in found if split_of(x) == name and known.isdisjoint(runs(x))]
        known.update(run for x in parts[name] for run in runs(x))
        if not parts[name]:
            raise ValueError(f"{text.source} has no {name} paragraphs apart from {evaluated.source}: give another --text")
    dropped = len(found) - sum(map(len, parts.values()))
    return {name: Split("\n\n".join(x), text.source, name, evaluated.digest, dropped) for name, x in parts.items()}


def drawn() -> dict[str, Split]:
    """Splits of data that are drawn at random: their names."""
    return {name: Split(name, "drawn at random", name, "", 0) for name in SPLITS}


def split_of(paragraph: str) -> str:
    """A paragraph's split, told by its words: a fifth of all is held out, a fifth is to calibrate on."""
    byte = hashlib.sha256(" ".join(paragraph.split()).encode()).digest()[0]
    return "held-out" if byte < 51 else "calibration" if byte < 102 else "train"


def calibration_text() -> Haystack:
    """The documentation's paragraphs to calibrate on: disjoint from what is trained on, held out, or evaluated as the haystack."""
    found = splits()["calibration"]
    return Haystack(found.text, found.source, found.name)


def documentation() -> str:
    """The language's reference topics and the docstrings of the standard library's modules: prose on every Python's disk.

    Modules are read, never imported; those that do not parse are left out.
    """
    import ast
    import sysconfig
    from pydoc_data.topics import topics

    parts = [topics[name] for name in sorted(topics)]
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        parts += [found for node in nodes if (found := ast.get_docstring(node)) and len(found) > 200]
    return "\n\n".join(parts)
