"""What stands below the leaderboard's tables: whether its order holds on other prompts, and what its rows cost."""

from collections.abc import Sequence

from experiments.leaderboard.halves import Halves, halves
from experiments.leaderboard.spent import Spent, spent
from experiments.markdown_table import table
from experiments.rows import Row
from kvjax.short_repr import span

_ABOUT = """Whether methods keep their order on prompts that they were not ranked by: Spearman's rank correlation of the scores on
the prompts of even and of odd number, each half ranked by itself, equal scores at their mean rank. *means*: of each method over the
shares with most prompts, as the tables above are sorted; at the smallest shares most methods are level at 0."""


def sections(rows: Sequence[Row]) -> list[str]:
    """Lines of both, each where the rows tell of it."""
    found, hours = halves(rows), spent(rows)
    order = ["## Other prompts", "", _ABOUT, "", *order_table(found), ""] if found else []
    return [*order, "## Cost", "", cost(hours), ""] if any(hours) else order


def order_table(found: Sequence[Halves]) -> list[str]:
    """A task a line, its rank correlations side by side."""
    budgets = sorted({one.budget for one in found if one.budget not in (None, 1.0)}, reverse=True)
    by_task: dict[tuple, dict[float | None, Halves]] = {}
    for one in found:
        by_task.setdefault((one.model, one.dtype, one.length, one.task), {})[one.budget] = one
    lines = []
    for (_, _, length, task), mine in by_task.items():
        counts = [span(one.methods for one in mine.values()), span(one.prompts for one in mine.values())]
        lines.append([task, str(length), *(_rho(mine.get(budget)) for budget in (None, *budgets, 1.0)), *counts])
    return table(["task", "tokens", "means", *(f"{100 * b:g}%" for b in budgets), "own size", "methods", "n"], lines, texts=1)


def _rho(one: Halves | None) -> str:
    return "-" if one is None or one.rho is None else f"{one.rho:.2f}"


def cost(hours: Spent) -> str:
    """Hours, in words."""
    return (
        f"By their own clocks these rows took {sum(hours):.1f} hours of two cores: {hours.prefill:.1f} of reading prompts, "
        f"{hours.compress:.1f} of compressing them and {hours.decode:.1f} of decoding answers. Compilation and the texts of "
        "perplexity come on top."
    )
