"""A table as markdown."""

from collections.abc import Sequence

from experiments.markdown_table import escaped
from experiments.markdown_table import table as lined
from experiments.report.tables import MB, Line, Score, Table
from experiments.report.words import difference, estimate


def markdown(table: Table) -> str:
    """The table as markdown; needle scores in percent, perplexity in nats per token, each with its 95% interval."""
    heads = ["policy", "budget", "kept", "device MB", "host MB", *(_title(name) for name in table.columns)]
    body = lined(heads, [_cells(line, table.columns) for line in table.lines], texts=2)
    full = f"full cache {table.lines[0].full / MB:.1f} MB"
    title = f"**{escaped(table.model)} ({escaped(table.dtype)}), {table.length} tokens; {full}**"
    note = (
        "MB: 10^6 bytes allocated for the prompt; host: values or whole heads kept in host memory. "
        "Intervals: 95%, Wilson's of scores, Student's t of nats: of the loss against the full cache."
    )
    return "\n".join([title, "", *body, "", note, ""])


def _title(name: str) -> str:
    return "ppl, nats/token" if name == "ppl" else f"{name}, score %"


def _cells(line: Line, columns: Sequence[str]) -> list[str]:
    scores = [_words(line.scores[name]) if name in line.scores else "-" for name in columns]
    budget = "-" if line.policy == "full" else f"{line.budget}"
    return [line.policy, budget, f"{100 * line.share:.1f}%", f"{line.allocated / MB:.2f}", f"{line.host / MB:.2f}", *scores]


def _words(score: Score) -> str:
    e, excess = score.estimate, score.excess
    if excess is None:
        return f"{estimate(e, score.kind)} n={e.count}"
    return f"{e.mean:.3f} ({difference(excess, score.kind)}) n={e.count}"
