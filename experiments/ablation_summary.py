"""Orderings of the published ablations, counted over the tables of `experiments/results/ablations`."""

import re
from collections import Counter
from pathlib import Path

FOLDER = Path(__file__).parent / "results" / "ablations"
#: How an ordering came out; "unresolved" is one whose 95% interval holds zero.
OUTCOMES = ("holds", "reversed", "unresolved", "equal")

_TASK = re.compile(r"^(\S.*?): \d+ of \d+ orderings of the paper hold", re.M)
_ORDERING = re.compile(r"^- .*\(paper [^)]*\): (agrees|reversed|equal)( \?)?,", re.M)


def outcomes(text: str) -> dict[str, Counter[str]]:
    """task → how many orderings had each outcome, from an ablation's page."""
    parts = _TASK.split(text)[1:]
    return {task: Counter(map(_outcome, _ORDERING.findall(part))) for task, part in zip(parts[::2], parts[1::2], strict=True)}


def _outcome(found: tuple[str, str]) -> str:
    verdict, open_interval = found
    if verdict == "equal":
        return "equal"
    if open_interval:
        return "unresolved"
    return "holds" if verdict == "agrees" else "reversed"


def prompts(text: str) -> int:
    """Prompts of a page's cells."""
    return max(map(int, re.findall(r"\bn=(\d+)", text)))


def table(folder: Path = FOLDER) -> str:
    """One line for each ablation and task; titles link to the pages."""
    lines = ["| ablation | task | prompts | " + " | ".join(OUTCOMES) + " |", "| --- | --- | --: |" + " --: |" * len(OUTCOMES)]
    for path in sorted(folder.glob("*.md")):
        text = path.read_text()
        title = text.splitlines()[0].split("** (")
        link = f"[{title[0].strip('*')}](ablations/{path.name}), {_table_of(title[1])}"
        for task, found in outcomes(text).items():
            lines.append(f"| {link} | {task} | {prompts(text)} | " + " | ".join(str(found[o]) for o in OUTCOMES) + " |")
    return "\n".join(lines)


def _table_of(source: str) -> str:
    """'arXiv 2508.02401, table 2 (Mistral-7B ...' → 'table 2'."""
    return re.sub(r"^arXiv [\d.]+, ", "", source).split(" (")[0].rstrip(")")
