"""The whole study: its three tables with what they mean, and the rows of its schema for machines."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from experiments.full_cache import MB
from experiments.study.cell import QUIET, Cell
from experiments.study.quality import Quality, of_cell
from experiments.study.rates import Load, left_out, rates
from experiments.study.tables import of_bytes, of_rates, of_times, with_pages
from kvjax.short_repr import span

_BYTES = """Device bytes of a batch's caches after the last token, bytes in host memory, bytes that crossed to the device a decode
step (those that were asked for are the papers' count; lists have a fixed size, and their rest comes, too), and the most bytes held
on the device, weights and dense prompts included. `paged` counts the full cache in pages of 16 slots, as a paged engine allocates;
nothing of it is run. A ratio stands with the needles found, its own and the full cache's on the same n prompts, in percent with
95% intervals (Wilson)."""

_TIMES = """First token: from the ids of the whole batch to its first tokens, prefill and compression; a token: a decode step of the
batch; {new} tokens a request, counted rounds: {rounds} (medians, with the least and the most), after one that compiles. Tokens/s:
generated tokens over all of that time. Others' cores: what other work kept busy on the machine meanwhile, mean; beyond {quiet:g}
of them times are not compared. `paged` has the full cache's times. Needles do not depend on the batch: padded batches are exact."""

_RATES = """Simulated from the times and bytes above, none of it measured: {count} requests come at random (Poisson) at the given
rate, each like those of the tables, and as many are served at once as {memory:g} MB of caches hold; a prompt is read alone, then
all decode together (`experiments/serving/queueing.py`). Means over {seeds} runs of arrivals of their own, the same for every
system; of the 95th percentile also the least and the most. * more at once than were measured: a step's time goes on by its last
slope."""


def page(cells: Sequence[Cell], quality: Quality, load: Load) -> list[str]:
    """Lines of markdown: bytes, times, request rates."""
    every = with_pages(cells)
    simulated, others = list(rates(every, load)), left_out(every, load)
    words = {"quiet": QUIET, "rounds": span(len(cell.step_seconds) for cell in cells), "new": span(cell.new for cell in cells)}
    lines = ["## Bytes", "", _BYTES, "", *of_bytes(every, quality), ""]
    lines += ["## Times", "", _TIMES.format(**words), "", *of_times(cells, quality), ""]
    told = _RATES.format(count=load.count, seeds=load.seeds, memory=load.memory / MB)
    lines += ["## Request rates, simulated", "", told, ""]
    lines += [*of_rates(simulated, quality), ""] if simulated else []
    return [*lines, *([_not_simulated(others), ""] if others else [])]


def payload(cells: Sequence[Cell], quality: Quality, load: Load) -> dict[str, object]:
    """The rows of the schema: every cell with its quality, and every simulated rate; no ratios."""
    every = with_pages(cells)
    simulated = [
        {"policy": rate.cell.policy, "budget": rate.cell.budget, "length": rate.cell.length, "rate": rate.rate}
        | {"at_once": rate.at_once, "beyond_measured": rate.beyond, "simulated": asdict(rate.served), "first_p95_range": rate.p95}
        for rate in rates(every, load)
    ]
    others = [{"policy": cell.policy, "budget": cell.budget, "why": why} for cell, why in left_out(every, load)]
    cells = [_cell(cell, quality) for cell in every]
    return {"cells": cells, "load": asdict(load), "rates": simulated, "not_simulated": others}


def _cell(cell: Cell, quality: Quality) -> dict[str, object]:
    found = of_cell(cell, quality)
    times = {"first_token_seconds": cell.first, "token_seconds": cell.step, "tokens_per_second": cell.tokens_per_second}
    return cell.row() | times | {"quality": None if found is None else asdict(found)}


def _not_simulated(found: Iterable[tuple[Cell, str]]) -> str:
    """One sentence for each reason, with the systems that it holds for."""
    reasons: dict[str, dict[str, None]] = {}
    for cell, reason in found:
        reasons.setdefault(reason, {})[f"`{cell.policy}` at {cell.budget:g}"] = None
    return " ".join(f"Not simulated, since it {reason}: {', '.join(names)}." for reason, names in reasons.items())
