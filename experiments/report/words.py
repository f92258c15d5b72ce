"""Numbers of a table, written the same way in every table and page: a score in percent, a loss in nats, each with its interval."""

import math

from experiments.stats import Estimate


def estimate(e: Estimate, kind: str) -> str:
    """`100 [57, 100]` of a score ("share"), `3.275 ± 0.372` of nats per token; the mean alone where no interval is known."""
    return _percent(e, "") if kind == "share" else _nats(e, "")


def difference(e: Estimate, kind: str) -> str:
    """`-25 [-62, +18]` of scores, `+0.037 ± 0.012` of nats."""
    return _percent(e, "+") if kind == "share" else _nats(e, "+")


def milliseconds(seconds: float | None, batch: float = 1) -> str:
    """`22.2`; of a step that decoded several cells at once its part, and of how many: `1.39 (1/16)`."""
    if seconds is None:
        return "-"
    text = f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"
    return text if batch <= 1 else f"{text} (1/{batch:g})"


def _percent(e: Estimate, sign: str) -> str:
    """Whole percents; of a difference a digit more where one of its ends would else be called zero."""
    values = [100 * x for x in (e.mean, e.low, e.high)]
    digits = 1 if sign and any(0 < abs(x) < 0.5 for x in values[1:]) else 0
    mean, low, high = (f"{x:{sign}.{digits}f}" for x in values)
    return mean if math.isnan(e.high) else f"{mean} [{low}, {high}]"


def _nats(e: Estimate, sign: str) -> str:
    """Three digits; as many more as show on which side of zero the interval lies, six at most."""
    half = e.high - e.mean
    if math.isnan(half):
        return f"{e.mean:{sign}.3f}"
    digits = next((d for d in range(3, 6) if round(abs(e.mean), d) != round(half, d)), 6) if half else 3
    return f"{e.mean:{sign}.{digits}f} ± {half:.{digits}f}"
