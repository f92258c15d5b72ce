"""The page of a sweep: its table, and what papers rank beside what was measured."""

import math
from pathlib import Path

from experiments.ablations.compare import kind, worths
from experiments.full_cache import half_nbytes
from experiments.markdown_table import table
from experiments.report import markdown, tables
from experiments.report.words import difference
from experiments.result_pages.standing import repeated, said, shown
from experiments.rows import Row
from experiments.verdicts import verdict

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "experiments" / "results"
#: A method, and one that its paper says it is better than.
RANKED = (
    ("compresskv", "snapkv"), ("d2o", "h2o"), ("heterocache", "snapkv"), ("snapkv", "h2o"), ("snapkv", "streaming_llm"),
    ("h2o", "streaming_llm"), ("expected_attention", "snapkv"), ("keydiff", "streaming_llm"),
    ("gear", "gear:rank=0"), ("gear", "kivi"), ("kvquant:bits=2", "kvquant:bits=2,outliers=0"), ("kvquant:bits=3", "kivi:bits=3"),
    ("turboquant:key_bits=3,value_bits=3", "kivi:bits=3"), ("turboquant:key_bits=3,value_bits=3", "kivi"), ("zipcache", "mikv"),
    ("zipcache", "kivi"), ("asymkv", "kivi:bits=1"), ("coupled_quantization", "kivi:bits=1"), ("qjl", "kivi"),
)  # fmt: skip
#: A storage that keeps every token, and what its paper says is worse: to let go of tokens until as many bytes are left.
AT_EQUAL_BYTES = (("mikv", "h2o"), ("zipcache", "h2o"))


def page(name: str, title: str, about: str) -> str:
    """docs/results/NAME.md."""
    path = ROWS / f"{name}.jsonl"
    rows = shown(path)
    body = [markdown(found) for found in tables(rows)]
    ranked = _ranked(rows)
    heads = ["task", "better in its paper", "than", "budget", "ours", "n", "verdict"]
    lines = [f"# {title}", "", f"{about} {said(rows)}", "", *body]
    lines += ["## What the papers rank", "", *table(heads, ranked, texts=3), ""] if ranked else []
    return "\n".join([*lines, "## Measured again", "", *repeated(rows, path, ROOT), ""])


def _ranked(rows: list[Row]) -> list[list[str]]:
    """Every pair of RANKED at every budget that both have, and of AT_EQUAL_BYTES, on every task."""
    budgets = sorted({row["budget"] for row in rows}, reverse=True)
    lines = []
    for budget in budgets:
        for task, by_policy in worths([row for row in rows if row["budget"] == budget]).items():
            lines += [
                _line(task, better, worse, budget, by_policy[better], by_policy[worse])
                for better, worse in RANKED
                if by_policy.get(better, {}).keys() & by_policy.get(worse, {}).keys()
            ]
    pairs = (*RANKED, *AT_EQUAL_BYTES)
    lines += [line for pair in AT_EQUAL_BYTES for line in _at_equal_bytes(rows, *pair)]
    return sorted(lines, key=lambda line: (pairs.index((line[1], line[2])), line[0] == "ppl", line[0]))


def _at_equal_bytes(rows: list[Row], better: str, worse: str) -> list[list[str]]:
    """A storage of the whole prompt beside the smallest budget of `worse` that keeps as large a share of a 16-bit cache."""
    mine = [row for row in rows if row["policy"] == better and row["budget"] == 1.0]
    others = [row for row in rows if row["policy"] == worse]
    if not mine:
        return []
    share = math.fsum(row["allocated_bytes"] / half_nbytes(row) for row in mine) / len(mine)
    enough = [row["budget"] for row in others if row["budget"] >= round(share, 2)]
    if not enough:
        return []
    budget = min(enough)
    found = worths([*mine, *(row for row in others if row["budget"] == budget)])
    return [
        _line(task, better, worse, f"1.0, {budget}", by_policy[better], by_policy[worse])
        for task, by_policy in found.items()
        if by_policy.get(better, {}).keys() & by_policy.get(worse, {}).keys()
    ]


def _line(task: str, better: str, worse: str, budget: float | str, mine: dict, other: dict) -> list[str]:
    shared = sorted(mine.keys() & other.keys())
    found = verdict([mine[prompt] for prompt in shared], [other[prompt] for prompt in shared], kind(task))
    return [task, better, worse, f"{budget}", difference(found.difference, kind(task)), f"{len(shared)}", found.said]
