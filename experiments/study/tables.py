"""The study's tables: bytes, times with what they cost in quality, and request rates. No ratio stands without its quality."""

import statistics
from collections.abc import Iterable, Sequence

from experiments.full_cache import MB
from experiments.markdown_table import table
from experiments.report.words import estimate
from experiments.stats import Estimate
from experiments.study.cell import NOT_RUN, Cell
from experiments.study.compared import compared
from experiments.study.paged import paged
from experiments.study.quality import Quality, of_cell, on_shared_prompts
from experiments.study.rates import Rate

#: Rounds below which times are told and not compared.
FEWEST = 3
_SYSTEM = ("system", "budget", "length", "batch")
_SIZES = ("cache MB", "host MB", "moved a step MB", "asked for MB", "peak MB", "peak from")
_BYTES = (*_SYSTEM, *_SIZES, "smaller than full, at needle %")
_TIMES = (*_SYSTEM, "first token s", "a token ms", "tokens/s", "others' cores", "needle %", "n", "faster than full, at needle %")
_RATES = ("system", "budget", "length", "at once", "requests/s", "first token p50 s", "p95 s", "tokens/s", "needle %")


def with_pages(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, the full cache's followed by its pages."""
    return [one for cell in cells for one in ((cell, paged(cell)) if cell.policy == "full" else (cell,))]


def of_bytes(cells: Sequence[Cell], quality: Quality) -> list[str]:
    """Lines of the table of bytes."""
    return table(_BYTES, [_bytes(cell, _full(cell, cells), quality) for cell in cells], texts=2)


def of_times(cells: Sequence[Cell], quality: Quality) -> list[str]:
    """Lines of the table of times; pages have the full cache's, and are not in it."""
    ran = [cell for cell in cells if cell.peak_from != NOT_RUN]
    return table(_TIMES, [_times(cell, _full(cell, ran), quality) for cell in ran], texts=2)


def of_rates(found: Sequence[Rate], quality: Quality) -> list[str]:
    """Lines of the simulated table; * where more requests run at once than were measured."""
    return table(_RATES, [_rate(rate, of_cell(rate.cell, quality)) for rate in found], texts=2)


def smaller(cell: Cell, full: Cell | None, quality: Quality) -> str:
    """The full cache's device bytes over the cell's with the quality of both, or why they are not told."""
    return "- (no full cache)" if full is None else _told(full.cache_bytes / cell.cache_bytes, cell, full, quality)


def faster(cell: Cell, full: Cell | None, quality: Quality) -> str:
    """The cell's tokens a second over the full cache's with the quality of both, or why they are not told."""
    if full is None:
        return "- (no full cache)"
    if not (cell.quiet and full.quiet):
        return "- (beside other work)"
    if min(len(cell.step_seconds), len(full.step_seconds)) < FEWEST:
        return f"- (fewer than {FEWEST} rounds)"
    return _told(cell.tokens_per_second / full.tokens_per_second, cell, full, quality)


def _told(ratio: float, cell: Cell, full: Cell, quality: Quality) -> str:
    try:
        mine, other = on_shared_prompts(cell, full, quality)
        return compared(ratio, quality=mine, full=other).said
    except ValueError as error:
        return f"- ({error})"


def _full(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The full cache on the same prompts."""

    def same(one: Cell) -> bool:
        return one.policy == "full" and (one.length, one.batch, one.new) == (cell.length, cell.batch, cell.new)

    return next(filter(same, cells), None)


def _bytes(cell: Cell, full: Cell | None, quality: Quality) -> list[str]:
    sizes = (cell.cache_bytes, cell.host_bytes, cell.moved_bytes, cell.asked_bytes, cell.peak_bytes)
    return [*_system(cell), *map(_mb, sizes), cell.peak_from, smaller(cell, full, quality)]


def _times(cell: Cell, full: Cell | None, quality: Quality) -> list[str]:
    found = of_cell(cell, quality)
    times = [_spread(cell.first_seconds, 1, 2), _spread(cell.step_seconds, 1e3, 1), f"{cell.tokens_per_second:.2f}"]
    others = "-" if cell.others is None else f"{cell.others:.1f}"
    return [*_system(cell), *times, others, _percent(found), f"{found.count if found else '-'}", faster(cell, full, quality)]


def _spread(values: Sequence[float], scale: float, digits: int) -> str:
    """The median, and where there are several the least and the most: `15.0 (14.8 to 15.9)`."""
    low, median, high = (f"{scale * x:.{digits}f}" for x in (min(values), statistics.median(values), max(values)))
    return median if len(values) == 1 else f"{median} ({low} to {high})"


def _rate(rate: Rate, quality: Estimate | None) -> list[str]:
    cell, served = rate.cell, rate.served
    at_once = f"{rate.at_once}{'*' if rate.beyond else ''}"
    low, high = rate.p95
    words = [f"{served.first_p50:.2f}", f"{served.first_p95:.2f} ({low:.2f} to {high:.2f})", f"{served.tokens_per_second:.2f}"]
    return [cell.policy, f"{cell.budget:g}", f"{cell.length}", at_once, f"{rate.rate:g}", *words, _percent(quality)]


def _system(cell: Cell) -> list[str]:
    return [cell.policy, f"{cell.budget:g}", f"{cell.length}", f"{cell.batch}"]


def _mb(value: float | None) -> str:
    return "-" if value is None else f"{value / MB:.2f}"


def _percent(found: Estimate | None) -> str:
    return "-" if found is None else estimate(found, "share")
