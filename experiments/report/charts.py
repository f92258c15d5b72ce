"""The charts of a report's page: each task's scores against bytes, which follow the page's filter."""

import math
import re
from collections.abc import Sequence

from experiments.full_cache import MB
from experiments.pages import Json
from experiments.pages.charts import Charts, charts, front
from experiments.report.comparison import Comparison, Entry
from experiments.report.words import difference, estimate, milliseconds
from experiments.stats import Estimate

#: Titles of the vertical axis, by unit.
TITLES = {"share": "score %", "nats": "nats per token"}


def none(compared: Sequence[Comparison]) -> Charts | None:
    """A page of tables and pictures alone."""
    del compared


def interactive(compared: Sequence[Comparison]) -> Charts | None:
    """A chart for each comparison; None where there is none to draw.

    Raises:
        ImportError: the extra `pages` is not installed.
    """
    rows = {key(found, e): _row(found, e) for found in compared for e in found.entries}
    policies = list(dict.fromkeys(e.policy for found in compared for e in found.entries))
    units = dict.fromkeys(found.kind for found in compared)
    drawn = {unit: front("bytes", "device MB", kinds=policies, score=TITLES[unit], percent=unit == "share") for unit in units}
    made = {unit: {"bytes": specification} for unit, specification in drawn.items()}
    return charts(rows, made) if rows else None


def table_key(found: Comparison) -> str:
    """What a table is called within its page."""
    return _slug(f"{found.model} {found.dtype} {found.length} {found.task}")


def key(found: Comparison, e: Entry) -> str:
    """What a line is called within its page."""
    return _slug(f"{table_key(found)} {e.policy} {e.budget}")


def datum(e: Entry, unit: str, *, name: str, kind: str, task: str, href: str) -> dict[str, Json]:
    """A line as a chart has it (`experiments.pages.charts.front`), and in words as a point says it."""
    time = 1e3 * e.token if e.token and e.batch <= 1 else None
    return {
        "name": name, "kind": kind, "unit": unit, "task": task, "href": href,
        **heights(e.score, unit),
        "bytes": e.allocated / MB if e.allocated > 0 else None, "time": time,
        "says": estimate(e.score, unit), "mb": f"{e.allocated / MB:.2f}", "share": f"{100 * e.allocated / e.full:.0f}%",
        "ms": milliseconds(e.token, e.batch), "difference": "-" if e.difference is None else difference(e.difference, unit),
    }  # fmt: skip


def heights(e: Estimate, unit: str) -> dict[str, Json]:
    """Where a point stands, and its line."""
    scale = 100.0 if unit == "share" else 1.0
    low, high = (None if math.isnan(x) else scale * x for x in (e.low, e.high))
    return {"score": scale * e.mean, "low": low, "high": high, "worth": e.mean if unit == "share" else -e.mean}


def _row(found: Comparison, e: Entry) -> Json:
    name = e.policy if e.policy == "full" else f"{e.policy} {e.budget}"
    made = datum(e, found.kind, name=name, kind=e.policy, task=found.task, href=f"#{key(found, e)}")
    return made | {"table": table_key(found)}


def _slug(text: str) -> str:
    return re.sub(r"[^\w.=-]+", "-", text)
