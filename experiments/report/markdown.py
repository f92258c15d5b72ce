"""A table as markdown."""

from collections.abc import Mapping, Sequence

from experiments.full_cache import MB, OF_HALF
from experiments.markdown_table import escaped
from experiments.markdown_table import table as lined
from experiments.report.tables import Line, Score, Table
from experiments.report.words import difference, estimate


def markdown(table: Table) -> str:
    """The table as markdown; needle scores in percent, perplexity in nats per token, each with its 95% interval."""
    tabled = any(line.tables is not None for line in table.lines)
    heads = ["policy", "budget", "kept", "device MB", OF_HALF, "host MB", *(["tables MB"] if tabled else [])]
    heads += [_title(name) for name in table.columns]
    body = lined(heads, [_cells(line, table.columns, tabled) for line in table.lines], texts=2)
    full = f"full cache {table.lines[0].full / MB:.1f} MB"
    title = f"**{escaped(table.model)} ({escaped(table.dtype)}), {table.length} tokens; {full}**"
    note = (
        "MB: 10^6 bytes allocated for the prompt, with positions and rounding; host: values or whole heads kept in host memory; "
        f"full cache: keys and values of all tokens alone; {OF_HALF}: device MB as a share of those in 16-bit numbers. "
        f"{TABLES + ' ' if tabled else ''}"
        "Intervals: 95%, Wilson's of scores, Student's t of nats: of the loss against the full cache."
    )
    return "\n".join([title, "", *body, "", note, "", *_costs(table)])


#: Says what the column of tables is.
TABLES = "Tables: codebooks, gates and the like, once for all prompts."


def _costs(table: Table) -> list[str]:
    """What answers cost, a column a task; no lines where no row has figures."""
    names = [name for name in table.columns if any(name in line.costs for line in table.lines)]
    figures = [name for name in FIGURES if _mostly_there(name, table)]
    if not figures:
        return []
    body = lined(["policy", "budget", *names], [_cost_cells(line, names, figures) for line in table.lines], texts=2)
    return [f"{' / '.join(FIGURES[name][0] for name in figures)}; medians:", "", *body, ""]


#: What the numbers of a cell are: in words, and how one is written, in units of so many.
FIGURES: Mapping[str, tuple[str, str, float]] = {
    "kv_footprint": ("KV footprint (entries held, summed over positions, as a share of the full cache's)", ".3f", 1.0),
    "pte_stored": ("PTE stored (cost in tokens prefilled, on an H100, of what is held)", ".4g", 1.0),
    "answer_tokens": ("tokens of the answer", ".4g", 1.0),
    "seconds_to_first_token": ("ms to its first token, compilation included", ".0f", 1e3),
}


def _mostly_there(name: str, table: Table) -> bool:
    """Whether at least half of the cells that have any figure have this one."""
    cells = [costs for line in table.lines for costs in line.costs.values()]
    return bool(cells) and 2 * sum(name in costs for costs in cells) >= len(cells)


def _cost_cells(line: Line, names: Sequence[str], figures: Sequence[str]) -> list[str]:
    cells = [_cost_words(line.costs[name], figures) if name in line.costs else "-" for name in names]
    return [line.policy, "-" if line.policy == "full" else f"{line.budget}", *cells]


def _cost_words(costs: Mapping[str, float], figures: Sequence[str]) -> str:
    return " / ".join(_figure(costs[name], *FIGURES[name][1:]) if name in costs else "-" for name in figures)


def _figure(value: float, form: str, scale: float) -> str:
    return format(scale * value, form)


def _title(name: str) -> str:
    return "ppl, nats/token" if name == "ppl" else f"{name}, score %"


def _cells(line: Line, columns: Sequence[str], tabled: bool) -> list[str]:
    scores = [_words(line.scores[name]) if name in line.scores else "-" for name in columns]
    budget = "-" if line.policy == "full" else f"{line.budget}"
    held = [f"{line.allocated / MB:.2f}", f"{100 * line.allocated / line.half:.0f}%", f"{line.host / MB:.2f}"]
    tables = ["-" if line.tables is None else f"{line.tables / MB:.2f}"] if tabled else []
    return [line.policy, budget, f"{100 * line.share:.1f}%", *held, *tables, *scores]


def _words(score: Score) -> str:
    e, excess = score.estimate, score.excess
    if excess is None:
        return f"{estimate(e, score.kind)} n={e.count}"
    return f"{e.mean:.3f} ({difference(excess, score.kind)}) n={e.count}"
