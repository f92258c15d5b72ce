"""What a task can tell: what the full cache scores on it, and what is left of that where half of the slots go at random."""

from collections.abc import Sequence
from pathlib import Path

from experiments.markdown_table import table
from experiments.report.comparison import Comparison, Entry, compare
from experiments.report.words import difference, estimate
from experiments.result_pages.standing import repeated, said, shown

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "experiments" / "results" / "tasks.jsonl"
#: What the full cache scores at least where a task is fit to compare methods on.
FIT = 0.8
HEADS = ("task", "tokens", "full cache", "half, at random", "lost", "n", "fit")

_ABOUT = f"""A task compares methods where the model does it with all of its cache and not with a part that nobody chose. Scores in
percent with 95% intervals: of the full cache, of `random` at half of the slots, and the difference on the same prompts; generated
tasks, whose question comes after the context is compressed. A task is fit where the full cache scores {100 * FIT:g}% or more and
the difference excludes zero."""


def page() -> str:
    """docs/results/tasks.md."""
    rows = shown(ROWS)
    lines = ["# Which tasks a model can do", ""]
    if not rows:
        return "\n".join([*lines, "No rows yet.", ""])
    lines += [_ABOUT, "", said(rows), ""]
    by_model: dict[str, list[Comparison]] = {}
    for found in compare(rows, "full"):
        by_model.setdefault(f"{found.model}, {found.dtype}", []).append(found)
    for model, of_model in by_model.items():
        lines += [f"## {model}", "", *table(HEADS, _lines(of_model), texts=1), ""]
    return "\n".join([*lines, "## Measured again", "", *repeated(rows, ROWS, ROOT), ""])


def _lines(compared: Sequence[Comparison]) -> list[list[str]]:
    """A line a task and length that both were measured on, the shortest first, of these what the full cache does best."""
    found = []
    for c in compared:
        full = next((e for e in c.entries if e.policy == "full"), None)
        half = next((e for e in c.entries if e.policy == "random"), None)
        if full is not None and half is not None and half.difference is not None and c.kind == "share":
            found.append((c, full, half))
    found.sort(key=lambda line: (line[0].length, -line[1].score.mean, line[0].task))
    return [_line(*line) for line in found]


def _line(c: Comparison, full: Entry, half: Entry) -> list[str]:
    fit = full.score.mean >= FIT and half.difference.high < 0
    scores = [estimate(full.score, c.kind), estimate(half.score, c.kind), difference(half.difference, c.kind)]
    return [c.task, f"{c.length}", *scores, f"{full.score.count}", "yes" if fit else "no"]
