"""LESS: maps of what H2O drops, by default from plain text."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import LESS

DATA = "text"
DEFAULTS = dict(recent_share=0.5, rank=8, hidden=512, rate=1e-3)


def learner(settings: Mapping[str, Any], budget: int | None) -> LESS:
    """Maps beside heads of `budget` slots; of a twentieth of a text without one."""
    return LESS(**settings) if budget is None else LESS(budget=budget, **settings)
