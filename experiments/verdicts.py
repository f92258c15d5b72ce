"""How a published ordering came out: one rule for every table.

The difference of two cells, prompt by prompt, has a 95% interval: Newcombe's for scores from 0 to 1, Student's t for nats.

    holds, reversed   the interval excludes zero, from `FEWEST` prompts on
    bounded           the interval holds zero and lies within ± what matters: 0.03 of a score (3 points), 0.005 nats
    unresolved        neither; with the prompts that would settle it, were means and spread to stay as they are

A difference without spread is no certainty. Of scores Newcombe's interval has a width all the same. Of nats, all prompts with one
and the same difference say its sign (a sign test of six or more is below 5%), and a difference of exactly zero on n prompts is
bounded once at most a tenth of all prompts can differ (the rule of three, 3 / n): from 30 on. Where all scores of both cells are 0,
or 1, more prompts do not help: the task must be harder or easier.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scipy.special import stdtrit

from experiments.stats import Estimate, average, correlation, newcombe, share_difference, standard_error

#: A score of 0.03 is three points; nats per token. Smaller differences are of no use to anybody.
MATTERS = {"share": 0.03, "nats": 0.005}
#: Prompts below which nothing is said: five differences of one sign happen by chance in one of 16 tables.
FEWEST = 6
#: Prompts without any difference from which at most a tenth of all can have one.
ALIKE = 30
#: Levels of an interval, and of one that is wider by as much as the true interval excludes zero with a power of 80%.
_INTERVAL, _POWERED = (0.975,), (0.975, 0.8)
#: No more prompts than this are ever asked for.
_MOST = 1_000_000
OUTCOMES = ("holds", "reversed", "bounded", "unresolved")


@dataclass(frozen=True)
class Verdict:
    """word: one of OUTCOMES.   difference: with its interval.   needed: prompts that would settle it; None where it is, or none do.

    why: "floor" or "ceiling" where all scores of both cells are 0, or 1; "small" of what is surely there and does not matter.
    """

    word: str
    difference: Estimate
    needed: int | None = None
    why: str = ""

    @property
    def said(self) -> str:
        """The verdict in words."""
        if self.word != "unresolved":
            return f"{self.word} ({self.why})" if self.why else self.word
        if self.why:
            return f"unresolved ({self.why})"
        return f"unresolved (n = {self.needed})" if self.needed else "unresolved"


def verdict(better: Sequence[float], worse: Sequence[float], kind: str, units: Sequence[int] | None = None) -> Verdict:
    """Whether what a paper ranks first is better here, from values of which more is better, prompt by prompt.

    Args:
        better, worse: of the same prompts, in one order: scores from 0 to 1, or minus the nats per token.
        kind: "share" or "nats".
        units: of nats, which prompts share graded tokens (`experiments.stretches`); None: none do.

    Raises:
        ValueError: no prompts, not the same number, or another kind.
    """
    if kind not in MATTERS or not better or len(better) != len(worse):
        got = f"{len(better)} and {len(worse)} values of {kind!r}"
        raise ValueError(f"expected values of the same prompts and one of {tuple(MATTERS)}; got {got}")
    return _of_shares(better, worse) if kind == "share" else _of_nats(better, worse, units)


def _of_shares(better: Sequence[float], worse: Sequence[float]) -> Verdict:
    found = share_difference(better, worse)
    values = {*better, *worse}
    if len(values) == 1 and values <= {0.0, 1.0}:
        return Verdict("unresolved", found, None, "floor" if values == {0.0} else "ceiling")
    p, q, phi = math.fsum(better) / found.count, math.fsum(worse) / found.count, correlation(better, worse)
    return _settled(found, "share", lambda n, levels: newcombe(p, q, phi, n, _quantile(math.inf, levels)))


def _of_nats(better: Sequence[float], worse: Sequence[float], units: Sequence[int] | None) -> Verdict:
    differences = [a - b for a, b in zip(better, worse, strict=True)]
    found = average(differences, units)
    if min(differences) == max(differences):
        return _without_spread(found)
    error, independent = standard_error(differences, units)
    spread, share = error * math.sqrt(found.count), independent / found.count

    def interval(n: int, levels: Sequence[float]) -> Estimate:
        half = _quantile(max(1.0, share * n - 1), levels) * spread / math.sqrt(n)
        return Estimate(found.mean, found.mean - half, found.mean + half, n)

    return _settled(found, "nats", interval)


def _without_spread(found: Estimate) -> Verdict:
    """All prompts have one difference."""
    least = ALIKE if found.mean == 0 else FEWEST
    unknown = replace(found, low=-math.inf, high=math.inf)
    if found.count < least:
        return Verdict("unresolved", unknown, least)
    if found.mean == 0:
        return Verdict("bounded", found)
    small = "small" if abs(found.mean) <= MATTERS["nats"] else ""
    return Verdict("holds" if found.mean > 0 else "reversed", found, None, small)


def _settled(found: Estimate, kind: str, interval: Callable[[int, Sequence[float]], Estimate]) -> Verdict:
    most = MATTERS[kind]
    if found.count >= FEWEST and _excludes_zero(found):
        small = "small" if _within(found, most) else ""
        return Verdict("holds" if found.mean > 0 else "reversed", found, None, small)
    if found.count >= FEWEST and _within(found, most):
        return Verdict("bounded", found)
    return Verdict("unresolved", found, _needed(interval, most, found.count))


def _needed(interval: Callable[[int, Sequence[float]], Estimate], most: float, now: int) -> int | None:
    """The fewest prompts with which the interval excludes zero at a power of 80%, or lies within ± `most`."""

    def settles(n: int) -> bool:
        return _excludes_zero(interval(n, _POWERED)) or _within(interval(n, _INTERVAL), most)

    low = high = max(FEWEST, now + 1)
    while not settles(high):
        low, high = high + 1, 2 * high
        if high > _MOST:
            return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if settles(middle) else (middle + 1, high)
    return high


def _excludes_zero(e: Estimate) -> bool:
    return e.low > 0 or e.high < 0


def _within(e: Estimate, most: float) -> bool:
    return -most <= e.low and e.high <= most


def _quantile(df: float, levels: Sequence[float]) -> float:
    """The sum of Student's quantiles at these levels; of the normal distribution where df is infinite."""
    return float(sum(stdtrit(min(df, 1e9), level) for level in levels))
