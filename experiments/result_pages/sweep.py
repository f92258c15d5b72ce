"""The page of a sweep: its table, and what papers rank beside what was measured."""

from collections.abc import Iterable
from pathlib import Path

from experiments.markdown_table import table
from experiments.report import markdown, tables
from experiments.result_pages.orderings import orderings
from experiments.result_pages.standing import repeated, said, shown

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "experiments" / "results"


def page(name: str, title: str, about: str, pairs: Iterable[tuple[str, str]] = ()) -> str:
    """docs/results/NAME.md; `pairs`: of methods, the one that is published as the better first."""
    path = ROWS / f"{name}.jsonl"
    rows = shown(path)
    with_most_tasks_first = sorted(tables(rows), key=lambda found: -len(found.columns))
    body = [markdown(found) for found in with_most_tasks_first]
    ranked = [
        [found.task, found.better, found.worse, found.budget, found.difference, str(found.count), found.verdict.said]
        for found in orderings(rows, pairs)
    ]
    heads = ["task", "better in its paper", "than", "budget", "ours", "n", "verdict"]
    lines = [f"# {title}", "", f"{about} {said(rows)}", "", *body]
    lines += ["## What the papers rank", "", *table(heads, ranked, texts=3), ""] if ranked else []
    return "\n".join([*lines, "## Measured again", "", *repeated(rows, path, ROOT), ""])
