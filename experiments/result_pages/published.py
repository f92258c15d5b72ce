"""docs/results/papers.md: what papers say of each other's methods, asked of the leaderboard's rows."""

from collections import Counter
from collections.abc import Sequence

from experiments.leaderboard.board import share_of
from experiments.markdown_table import table
from experiments.result_pages import board
from experiments.result_pages.claims import BASELINE, METHODS, claims
from experiments.result_pages.orderings import WHOLE, Ordering, orderings
from experiments.result_pages.standing import said
from experiments.rows import Row
from experiments.verdicts import FEWEST, OUTCOMES
from kvjax.short_repr import span

_ABOUT = f"""Who is better than whom, as papers publish it (`experiments/result_pages/claims.py`). The column *as* names the paper
or the repository that has the two in this order, and the benchmark, table or figure there; it was read itself or in a summary, and
is not always the first method's own. *{BASELINE}* stands where none was found: the first method's own paper compares with the other
one. Beside it stand the [leaderboard](leaderboard.md)'s rows: one model, one harness, the methods' own defaults, the same prompts.
A cell is what the first method is ahead at that share of the slots, in points of a score or nats a token, with its 95% interval
paired over the first n prompts of one list, and the verdict under [the rules of all pages](index.md). A method without a budget has
a size of its own: where it is the better one, it stands beside the smallest share of the other's slots that, were they kept in 16
bits, would hold as many bytes as it has on the device, which is named; where it is the other, in every column. Papers measure
larger models on longer prompts: what is reversed here is reversed on this model. LazyEviction and TriAttention are published for
long answers, behind a prompt that stays whole, which a needle's rows cut at once: `counting_given` is nearer to their papers. Of
{{count}} verdicts at 95% each some are chance; a cell of fewer than {FEWEST} prompts has none."""


def page() -> str:
    """docs/results/papers.md."""
    rows = _rows()
    found = _found(rows)
    by_task: dict[str, list[Ordering]] = {}
    for one in found:
        by_task.setdefault(one.task, []).append(one)
    lines = ["# What papers rank", "", _ABOUT.format(count=len(found)), "", said(rows), "", *_counts(by_task), ""]
    for task, mine in by_task.items():
        lines += [f"## {task}", "", *_of_task(mine), ""]
    lines += _without(found)
    return "\n".join([*lines, "The rows are measured again as the [leaderboard](leaderboard.md#measured-again) says.", ""])


def counts() -> str:
    """How many orderings came out how, in a few words."""
    found = Counter(one.verdict.word for one in _found(_rows()))
    return ", ".join(f"{found[word]} {word}" for word in OUTCOMES)


def _found(rows: Sequence[Row]) -> list[Ordering]:
    return [one for one in orderings(rows, [claim.pair for claim in claims(METHODS)]) if one.count >= FEWEST]


def _without(found: Sequence[Ordering]) -> list[str]:
    """The published pairs that no task and budget brings together."""
    there = {(one.better, one.worse) for one in found}
    left = [" and ".join(claim.pair) for claim in claims(METHODS) if claim.pair not in there]
    return [f"Published, and not at one size here: {', '.join(left)}.", ""] if left else []


def _rows() -> list[Row]:
    """The leaderboard's rows of the model as it comes, under their methods' names; slots as the shares that they are."""
    rows = [row for row in board.rows() if "+" not in row["model"]]
    shares = sorted({row["budget"] for row in rows if isinstance(row["budget"], float)})
    return [
        row | {"policy": row["policy"].partition(":")[0], "budget": share_of(row["budget"], row["length"], shares)} for row in rows
    ]


def _counts(by_task: dict[str, list[Ordering]]) -> list[str]:
    lines = []
    for task, found in by_task.items():
        words = Counter(one.verdict.word for one in found)
        lines.append([task, *(str(words[word]) for word in OUTCOMES)])
    return table(["task", *OUTCOMES], lines, texts=1)


def _of_task(found: Sequence[Ordering]) -> list[str]:
    """A pair a line, budgets side by side."""
    columns = sorted({one.budgets[0] for one in found}, reverse=True)
    by_pair: dict[tuple[str, str], dict[float, Ordering]] = {}
    for one in found:
        by_pair.setdefault((one.better, one.worse), {})[one.budgets[0]] = one
    sources = {claim.pair: claim.source for claim in claims(METHODS)}
    lines = []
    for pair, mine in by_pair.items():
        cells = [_cell(mine[budget]) if budget in mine else "-" for budget in columns]
        lines.append([*pair, sources[pair], *cells, span(one.count for one in mine.values())])
    heads = ["own size" if budget == WHOLE else f"{100 * budget:g}%" for budget in columns]
    return table(["published as better", "than", "as", *heads, "n"], lines, texts=3)


def _cell(one: Ordering) -> str:
    beside = f" (beside {100 * one.budgets[1]:g}%)" if one.budgets[0] == WHOLE != one.budgets[1] else ""
    return f"{one.difference} {one.verdict.said}{beside}"
