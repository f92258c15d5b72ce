"""A ratio of two systems, which is not told without what it costs: the quality of both comes with it, each with its interval."""

from dataclasses import dataclass

from experiments.report.words import estimate
from experiments.stats import Estimate


@dataclass(frozen=True)
class Compared:
    """A ratio and the quality beside it; made by `compared`.

    Attributes:
        ratio: above 1 where the system is better than the full cache.   quality: the system's.   full: the full cache's.
    """

    ratio: float
    quality: Estimate
    full: Estimate

    @property
    def said(self) -> str:
        """`1.31x at 95 [76, 99] of 100 [84, 100], n=20`: scores in percent."""
        own, full = (estimate(found, "share") for found in (self.quality, self.full))
        return f"{self.ratio:.2f}x at {own} of {full}, n={self.quality.count}"


def compared(ratio: float, *, quality: Estimate | None, full: Estimate | None) -> Compared:
    """A ratio to the full cache with what it costs.

    Args:
        ratio: above 1 where the system is better.   quality: the system's.   full: the full cache's on the same prompts.

    Raises:
        ValueError: the quality of either is not known, or is that of another number of prompts.
    """
    if quality is None or full is None:
        raise ValueError("no ratio without the quality of both")
    if quality.count != full.count:
        raise ValueError(f"no ratio of unlike prompts: the system was asked {quality.count}, the full cache {full.count}")
    return Compared(ratio, quality, full)
