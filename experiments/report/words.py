"""Numbers of a table, written the same way in every table and page: a score in percent, a loss in nats, each with its interval."""

import math

from experiments.stats import Estimate


def estimate(e: Estimate, kind: str) -> str:
    """`100 [57, 100]` of a score ("share"), `3.275 ± 0.372` of nats per token; the mean alone where no interval is known."""
    return _percent(e, "") if kind == "share" else f"{e.mean:.3f}{_half(e)}"


def difference(e: Estimate, kind: str) -> str:
    """`-25 [-62, +18]` of scores, `+0.037 ± 0.012` of nats."""
    return _percent(e, "+") if kind == "share" else f"{e.mean:+.3f}{_half(e)}"


def milliseconds(seconds: float | None, batch: float = 1) -> str:
    """`22.2`; of a step that decoded several cells at once its part, and of how many: `1.39 (1/16)`."""
    if seconds is None:
        return "-"
    text = f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"
    return text if batch <= 1 else f"{text} (1/{batch:g})"


def _percent(e: Estimate, sign: str) -> str:
    mean, low, high = (f"{100 * x:{sign}.0f}" for x in (e.mean, e.low, e.high))
    return mean if math.isnan(e.high) else f"{mean} [{low}, {high}]"


def _half(e: Estimate) -> str:
    return "" if math.isnan(e.high) else f" ± {e.high - e.mean:.3f}"
