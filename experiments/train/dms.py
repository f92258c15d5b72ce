"""DMS: which tokens go after a delay, by default from plain text."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import DMS

DATA = "text"
DEFAULTS = dict(window=512, ratio=16.0, ramp=510 / 544, temperature=0.1, weight=1.0, rate=3e-5, clip=1.0)


def learner(settings: Mapping[str, Any], budget: int | None) -> DMS:
    """Decisions for a cache that becomes `ratio` times smaller.

    Raises:
        ValueError: a budget in slots, which no part of the loss would know.
    """
    if budget is not None:
        raise ValueError("dms is trained for a compression, not for slots: leave --budget out, and give --set ratio=N")
    return DMS(**settings)
