"""DBTrimKV: retention gates on one scale for all layers, by default for answers that the model itself gave."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import MakeEachTokenCount

DATA = "answers"
DEFAULTS = dict(hidden=512, bias=18.0, shared=True, weight=1.0, rate=2e-4, floor=1e-6, warmup=100, decay=1e-6)


def learner(settings: Mapping[str, Any], budget: int | None) -> MakeEachTokenCount:
    """Gates for a model whose heads hold `budget` slots on average (128)."""
    return MakeEachTokenCount(**settings) if budget is None else MakeEachTokenCount(budget=budget, **settings)
