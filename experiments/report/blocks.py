"""Comparisons and benchmarks as tables of the page."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.full_cache import MB, OF_HALF
from experiments.pages.table import Cell, Head
from experiments.report.charts import key, table_key
from experiments.report.comparison import Comparison, Entry
from experiments.report.markdown import TABLES
from experiments.report.page import Block, Line, Shown
from experiments.report.words import difference, estimate, milliseconds
from experiments.stats import Estimate

INTERVALS = (
    "95% intervals, as in table.md: Wilson's of scores, Newcombe's of their paired differences, Student's t of nats. "
    "Difference: prompt by prompt over the prompts both measured (n), "
)
TIMES = (
    "ms: medians; (1/16): a sixteenth of a step that decoded 16 cells at once, which is less than a cell takes alone. "
    f"MB: 10^6 bytes allocated for the prompt; {OF_HALF}: device MB as a share of keys and values of all tokens in 16-bit numbers."
)
#: Figures of `experiments.answer_cost`, as heads of columns.
COSTS = {
    "kv_footprint": "KV footprint",
    "kv_peak": "KV peak",
    "pte": "PTE",
    "pte_stored": "PTE stored",
    "answer_tokens": "answer tokens",
    "seconds_to_first_token": "first token ms",
}
COST_NOTE = (
    "KV footprint: key entries held, summed over positions, as a share of the full cache's; the prompt was read at once. PTE: "
    "tokens prefilled plus what reading the cache costs in such tokens on an H100, of the whole context, or (stored) of what is "
    "held, at its bits. First token: prefill, compression and the question, compilation included where a shape was new. Medians."
)


def comparison(found: Comparison, pictures: Sequence[Shown]) -> Block:
    """A task's table: bytes, score, difference to the baseline, times."""
    unit = "score %" if found.kind == "share" else "nats/token"
    costs = [name for name in COSTS if any(name in entry.costs for entry in found.entries)]
    names = ["policy", "budget", unit, "n", f"− {found.baseline}", "n paired"]
    tabled = any(entry.tables is not None for entry in found.entries)
    names += ["kept", "device MB", OF_HALF, "host MB", *(["tables MB"] if tabled else []), "compress ms", "ms/token"]
    names += [COSTS[name] for name in costs]
    better = "above 0 is better" if found.kind == "share" else "below 0 is better"
    note = f"{INTERVALS}this policy minus {found.baseline} at the same budget or its only one; {better}. {TIMES}"
    note += f" {TABLES}" if tabled else ""
    lines = [_line(entry, found, costs, tabled) for entry in found.entries]
    return Block(found.task, _heads(names), lines, f"{note} {COST_NOTE}" if costs else note, pictures, table_key(found))


def ratios(name: str, bench: Mapping[str, Any], pictures: Sequence[Shown]) -> Block:
    """A benchmark's ratios, with its conditions below."""
    rows = [Line([Cell(label), _number(value)]) for label, value in bench.get("ratios", {}).items()]

    def listed(versions: Mapping[str, str]) -> str:
        return ", ".join(f"{package} {version}" for package, version in versions.items())

    note = f"{bench['shape']}, {bench['dtype']}; {bench['machine']}, commit {bench['commit']}; {listed(bench['versions'])}"
    note += f"; peers: {listed(bench['peers'])}" if "peers" in bench else ""
    return Block(f"{bench['bench']} ({name})", _heads(["ratio", "value"]), rows, note, pictures)


def _line(entry: Entry, found: Comparison, costs: Sequence[str], tabled: bool) -> Line:
    budget = Cell("-") if entry.policy == "full" else Cell(f"{entry.budget}", entry.budget)
    marked = entry.policy == found.baseline
    compared = [Cell("baseline" if marked else "-"), Cell("-")]
    if entry.difference is not None:
        compared = [Cell(difference(entry.difference, found.kind), entry.difference.mean), _count(entry.difference)]
    cells = [
        Cell(entry.policy), budget, Cell(estimate(entry.score, found.kind), entry.score.mean), _count(entry.score), *compared,
        Cell(f"{100 * entry.share:.1f}%", entry.share), _bytes(entry.allocated), _percent(entry.allocated / entry.half),
        _bytes(entry.host), *([_bytes(entry.tables)] if tabled else []),
        Cell(milliseconds(entry.compress), entry.compress), Cell(milliseconds(entry.token, entry.batch), entry.token),
        *(_cost(name, entry.costs.get(name)) for name in costs),
    ]  # fmt: skip
    return Line(cells, marked, entry.policy, budget.text, key(found, entry))


def _cost(name: str, value: float | None) -> Cell:
    if value is None or name.startswith("seconds"):
        return Cell(milliseconds(value), value)
    return Cell(f"{value:.3f}" if name.startswith("kv") else f"{value:.4g}", value)


def _heads(names: Sequence[str]) -> list[Head]:
    return [Head(name, first="ascending") for name in names]


def _count(e: Estimate) -> Cell:
    return Cell(str(e.count), e.count)


def _bytes(count: float | None) -> Cell:
    return Cell("-") if count is None else Cell(f"{count / MB:.2f}", count)


def _percent(share: float) -> Cell:
    return Cell(f"{100 * share:.0f}%", share)


def _number(value: Any) -> Cell:
    return Cell(f"{value:.4g}", value) if isinstance(value, int | float) else Cell(str(value))
