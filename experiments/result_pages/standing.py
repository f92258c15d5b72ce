"""Which rows a page may show, and what it must say of them."""

import re
from collections.abc import Sequence
from pathlib import Path

from experiments.report.reproduce import commands
from experiments.rows import Row, read

#: How stages name the artefact they were made from: `kvjax.artefacts.artefact.Artefact.origin`.
_ORIGIN = re.compile(r"\b\w+ of [^\s,']+, [0-9a-f]{12}")


def told(row: Row) -> bool:
    """Whether every artefact behind a row's policy is known to have read other text than the row was measured on.

    A sweep refuses the others and writes what the artefacts read into `artefacts`.
    """
    return set(_ORIGIN.findall(row["policy_repr"])) <= set(row.get("artefacts", ()))


def clean(row: Row) -> bool:
    """Whether it was measured at a commit, without changes beside it."""
    return bool(row.get("commit")) and not row["commit"].endswith("+")


def shown(path: Path) -> list[Row]:
    """The rows of a file that may be shown; none where there is no file."""
    return [row for row in read(path) if told(row)] if path.is_file() else []


def said(rows: Sequence[Row]) -> str:
    """Where the rows come from, in a sentence."""
    dirty = sum(not clean(row) for row in rows)
    from_where = "at commits without changes" if not dirty else f"{dirty} of them not from a commit without changes"
    text = ", ".join(sorted({f"{row['text']} ({row.get('split', 'whole')})" for row in rows if row.get("text")}))
    return f"{len(rows)} rows, {from_where}. Prompts are cut from {text}."


def repeated(rows: Sequence[Row], path: Path, root: Path) -> list[str]:
    """The commands that measure the rows again, as a block of a shell."""
    lines = [line for line in commands(rows, path.relative_to(root)) if not line.startswith("#")]
    return ["```bash", *lines, "```"]
