"""LookaheadKV: tokens that stand for an answer, by default for answers that the model itself gave."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import LookaheadKV

DATA = "answers"
DEFAULTS = dict(tokens=32, rank=8, alpha=32.0, rate=1e-4, warmup=100, clip=1.0)


def learner(settings: Mapping[str, Any], budget: int | None) -> LookaheadKV:
    """Tokens that rank for a head of `budget` slots (256)."""
    return LookaheadKV(**settings) if budget is None else LookaheadKV(budget=budget, **settings)
