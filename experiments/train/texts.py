"""Text to train on, apart from text that is evaluated on: named splits whose paragraphs share no run of words with the haystack.

A text is cut at empty lines. A paragraph that has twelve words in a row in common with the haystack of the tasks is left out,
whatever the source. What remains is "held-out" where the first byte of its SHA-256 is below 51 (a fifth), "train" elsewhere:
a paragraph's split depends on its words alone, so that a longer text moves none.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.provenance import digest
from experiments.tasks.text import Haystack, haystack

#: Words in a row by which two texts are found to share something.
RUN = 12
SPLITS = ("train", "held-out")
TOPICS = "pydoc_data.topics and docstrings of the standard library"


@dataclass(frozen=True)
class Split:
    """A named part of a text.

    Attributes:
        text: its paragraphs, an empty line between them.   source, name: of the whole text, of the split.
        avoided: digest of the haystack it shares nothing with.   dropped: paragraphs that were left out for it.
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
    """The "train" and the "held-out" paragraphs of a text file, by default of the standard library's own documentation.

    Args:
        evaluated: what no paragraph may share words with; by default the haystack of the tasks.

    Raises:
        ValueError: a text that leaves a split empty.
    """
    text = haystack(path) if path is not None else Haystack(documentation(), TOPICS)
    evaluated = haystack() if evaluated is None else evaluated
    known = set(runs(evaluated.text))
    found = [paragraph.strip() for paragraph in text.text.split("\n\n") if paragraph.strip()]
    apart = [paragraph for paragraph in found if known.isdisjoint(runs(paragraph))]
    made = {}
    for name in SPLITS:
        mine = [paragraph for paragraph in apart if split_of(paragraph) == name]
        if not mine:
            raise ValueError(f"{text.source} has no {name} paragraphs apart from {evaluated.source}: give another --text")
        made[name] = Split("\n\n".join(mine), text.source, name, evaluated.digest, len(found) - len(apart))
    return made


def drawn() -> dict[str, Split]:
    """Splits of data that are drawn at random: their names."""
    return {name: Split(name, "drawn at random", name, "", 0) for name in SPLITS}


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Every `RUN` words in a row; of a shorter text all its words."""
    words = text.split()
    yield from (tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1)))


def split_of(paragraph: str) -> str:
    """A paragraph's split, told by its words: a fifth of all is held out."""
    byte = hashlib.sha256(" ".join(paragraph.split()).encode()).digest()[0]
    return "held-out" if byte < 51 else "train"


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
