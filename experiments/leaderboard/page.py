"""The leaderboard as one HTML page that needs no network: a table that sorts and filters, and charts of the rows it shows."""

import math
from collections.abc import Mapping, Sequence

from experiments.full_cache import MB
from experiments.leaderboard.board import Place, group
from experiments.leaderboard.kinds import KINDS
from experiments.pages import Json, environment
from experiments.pages.charts import COLOURS, charts, front
from experiments.pages.table import Cell, Head
from experiments.report.charts import datum as chart_datum
from experiments.report.charts import heights
from experiments.report.words import difference, estimate, milliseconds
from experiments.stats import Estimate
from kvjax.short_repr import span

#: Titles of the vertical axis, by unit.
_AXES = {"share": "score %", "nats": "nats per token beyond the full cache"}
COLOUR = dict(zip(KINDS, COLOURS, strict=True))


HEADS = (
    Head("method", "a method of kvjax, with its budget", "ascending", True),
    Head(
        "score", "score in percent, higher is better, or nats per token, lower is better; 95% interval; sorted best first, "
        "nats by what is lost against the full cache on the same prompts",
        sorted="descending",
    ),
    Head("− full", "difference to the full cache on the same prompts, with its 95% interval"),
    Head("n", "scores that were averaged"),
    Head("kind", "what the method does", "ascending", True),
    Head("budget", "slots per KV head, or the share of the prompt kept; own: the method has no budget"),
    Head("device MB", "10^6 bytes allocated on the device for the prompt, and their share of its keys and values", "ascending"),
    Head("host MB", "10^6 bytes in host memory", "ascending"),
    Head("compress ms", "milliseconds to compress the prompt, a median over prompts", "ascending"),
    Head("ms/token", "milliseconds per token of question and answer, a median over prompts", "ascending"),
)

NOTE = (
    "Intervals are 95%: Wilson's of scores, Newcombe's of paired differences, Student's t of nats per token; of the mean of scores "
    "they are joined from those of its tasks (Zou and Donner). Times are medians over prompts, of the machines below; (1/16): a "
    "sixteenth of a step that decoded 16 cells at once; of few prompts they count compilation. The filter by fronts is of all rows "
    "of a task."
)


def render(
    places: Sequence[Place], repeats: Sequence[str], *, left_out: Mapping[str, str], command: str, origins: list[dict[str, str]]
) -> str:
    """The page.

    Args:
        places: the rows, in their order.   repeats: the command that measures each again.
        left_out: methods that were not measured, and why.
        command: the one that wrote the page.   origins: versions and machines (`experiments.report.page.origins`).
    """
    bars = _scales(places)
    used = {place.kind for place in places}
    return environment().get_template("leaderboard.html").render(
        title=f"KV-cache compression: {', '.join(sorted({place.model for place in places}))}",
        about=_about(places),
        tasks=list(dict.fromkeys(place.task for place in places)),
        settings=list(dict.fromkeys(map(_setting, places))),
        kinds=[kind for kind in KINDS if kind in used],
        colours=COLOUR,
        budgets=sorted({group(place) for place in places}, key=lambda text: -math.inf if text == "own" else -float(text)),
        together=any(place.time is None for place in places),
        heads=HEADS,
        rows=[_row(place, repeat, bars) for place, repeat in zip(places, repeats, strict=True)],
        note=NOTE,
        left_out=left_out,
        command=command,
        origins=origins,
        charts=charts([datum(i, place) for i, place in enumerate(places)], specifications(places)),
    )  # fmt: skip


def datum(index: int, place: Place) -> Json:
    """A row as the charts have it."""
    made = chart_datum(place.entry, place.unit, name=place.name, kind=place.kind, task=place.task, href=f"#row-{index}")
    return made | heights(place.value, place.unit)


def specifications(places: Sequence[Place]) -> dict[str, Json]:
    """Specifications by unit and name."""
    costs = {"bytes": "device MB", "time": "ms per token"}
    return {
        unit: {name: front(name, costs[name], kinds=list(KINDS), score=_AXES[unit], percent=unit == "share") for name in costs}
        for unit in dict.fromkeys(place.unit for place in places)
    }


def _about(places: Sequence[Place]) -> str:
    methods = len({place.entry.policy.partition(":")[0] for place in places})
    prompts = span(place.entry.score.count for place in places if len(place.tasks) == 1)
    return f"{methods} methods; prompts of a task: {prompts}. {', '.join(dict.fromkeys(map(_setting, places)))}."


def _setting(place: Place) -> str:
    return f"{place.model} ({place.dtype}), {place.length} tokens"


def _row(place: Place, repeat: str, bars: Mapping[tuple, tuple[float, float]]) -> dict[str, object]:
    fronts = [name for name, on in (("bytes", place.cheap), ("time", place.fast)) if on]
    return {
        "task": place.task, "setting": _setting(place), "kind": place.kind, "group": group(place), "fronts": " | ".join(fronts),
        "method": place.entry.policy, "marked": place.entry.policy == "full", "command": repeat,
        "cells": _cells(place, bars[_setting(place), place.task]),
    }  # fmt: skip


def _cells(place: Place, scale: tuple[float, float]) -> list[Cell]:
    e = place.entry
    score = Cell(estimate(e.score, place.unit), place.worth, _bar(place.value, scale))
    less = Cell("-") if e.difference is None else Cell(difference(e.difference, place.unit), e.difference.mean)
    budget = Cell(place.budget, None if place.budget == "own" else float(group(place)))
    return [
        Cell(place.name, words=True), score, less, Cell(str(e.score.count), e.score.count),
        Cell(place.kind, colour=COLOUR[place.kind], words=True), budget,
        Cell(f"{e.allocated / MB:.2f} ({_percent(e.allocated / e.full)})", e.allocated), Cell(f"{e.host / MB:.2f}", e.host),
        Cell(milliseconds(e.compress), e.compress), Cell(milliseconds(e.token, e.batch), e.token),
    ]  # fmt: skip


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def _scales(places: Sequence[Place]) -> dict[tuple, tuple[float, float]]:
    """The ends of the bars of each task: 0 and 1 of scores, the least and the most of nats."""
    found: dict[tuple, tuple[float, float]] = {}
    for place in places:
        ends = [x for x in (place.value.low, place.value.mean, place.value.high) if not math.isnan(x)]
        low, high = found.get((_setting(place), place.task), (math.inf, -math.inf))
        share = place.unit == "share"
        found[_setting(place), place.task] = (0.0, 1.0) if share else (min(low, *ends), max(high, *ends))
    return found


def _bar(e: Estimate, scale: tuple[float, float]) -> tuple[float, float, float] | None:
    low, high = scale
    if math.isnan(e.low) or high <= low:
        return None
    a, b, c = (round(100 * (x - low) / (high - low), 1) for x in (e.low, e.mean, e.high))
    return a, b, c
