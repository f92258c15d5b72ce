"""Locret: what an answer will look at, by default of answers that the model itself gave."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import Locret

DATA = "answers"
DEFAULTS = dict(hidden=1024, weight=0.0025, rate=5e-4, rise=2 / 3, decay=0.01, clip=0.5)


def learner(settings: Mapping[str, Any], budget: int | None) -> Locret:
    """Guesses that a head of `budget` slots (6000) ranks by."""
    return Locret(**settings) if budget is None else Locret(budget=budget, **settings)
