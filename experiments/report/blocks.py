"""Comparisons and benchmarks as tables of the page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.full_cache import MB
from experiments.report.comparison import Comparison, Entry
from experiments.report.page import Block, Cell, Line, Shown
from experiments.stats import Estimate

INTERVALS = (
    "Brackets: 95% percentile bootstrap over prompts, 2,000 resamples, seed 0; equal scores have no width there, for which the "
    "curves and table.md have Wilson's interval. Difference: prompt by prompt over the prompts both measured (n), "
)
TIMES = "ms: medians; a token's is a cell's part of the batch it was decoded in. MB: 10^6 bytes allocated for the prompt."


def comparison(found: Comparison, pictures: Sequence[Shown]) -> Block:
    """A task's table: bytes, score, difference to the baseline, times."""
    unit = "score %" if found.kind == "share" else "nats/token"
    heads = ["policy", "budget", "kept", "device MB", "host MB", unit, "n"]
    heads += [f"− {found.baseline}", "n paired", "compress ms", "ms/token"]
    better = "above 0 is better" if found.kind == "share" else "below 0 is better"
    note = f"{INTERVALS}this policy minus {found.baseline} at the same budget or its only one; {better}. {TIMES}"
    return Block(found.task, heads, [_line(entry, found) for entry in found.entries], note, pictures)


def ratios(name: str, bench: Mapping[str, Any], pictures: Sequence[Shown]) -> Block:
    """A benchmark's ratios, with its conditions below."""
    rows = [Line([Cell(label), _number(value)]) for label, value in bench.get("ratios", {}).items()]
    listed = lambda versions: ", ".join(f"{package} {version}" for package, version in versions.items())  # noqa: E731
    note = f"{bench['shape']}, {bench['dtype']}; {bench['machine']}, commit {bench['commit']}; {listed(bench['versions'])}"
    note += f"; peers: {listed(bench['peers'])}" if "peers" in bench else ""
    return Block(f"{bench['bench']} ({name})", ["ratio", "value"], rows, note, pictures)


def _line(entry: Entry, found: Comparison) -> Line:
    scale, digits = (100.0, 1) if found.kind == "share" else (1.0, 3)
    budget = Cell("-") if entry.policy == "full" else Cell(f"{entry.budget}", entry.budget)
    marked = entry.policy == found.baseline
    difference = [Cell("baseline" if marked else "-"), Cell("-")]
    if entry.difference is not None:
        difference = [_estimate(entry.difference, scale, f"+.{digits}f"), _count(entry.difference)]
    cells = [
        Cell(entry.policy), budget, Cell(f"{100 * entry.share:.1f}%", entry.share), _bytes(entry.allocated), _bytes(entry.host),
        _estimate(entry.score, scale, f".{digits}f"), _count(entry.score), *difference, _ms(entry.compress), _ms(entry.token),
    ]  # fmt: skip
    return Line(cells, marked)


def _estimate(e: Estimate, scale: float, form: str) -> Cell:
    mean, low, high = (format(scale * x, form) for x in (e.mean, e.low, e.high))
    return Cell(mean if math.isnan(e.high) else f"{mean} [{low}, {high}]", e.mean)


def _count(e: Estimate) -> Cell:
    return Cell(str(e.count), e.count)


def _bytes(count: float) -> Cell:
    return Cell(f"{count / MB:.2f}", count)


def _ms(seconds: float | None) -> Cell:
    return Cell("-") if seconds is None else Cell(f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}", seconds)


def _number(value: Any) -> Cell:
    return Cell(f"{value:.4g}", value) if isinstance(value, int | float) else Cell(str(value))
