"""TRIM-KV: retention gates, by default for answers that the model itself gave."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import TrimKV

DATA = "answers"
DEFAULTS = dict(hidden=512, bias=18.0, weight=1.0, rate=2e-4, floor=1e-6, warmup=100, decay=1e-6)


def learner(settings: Mapping[str, Any], budget: int | None) -> TrimKV:
    """Gates for heads that hold `budget` slots (128: the 512 of the paper hold all of a text of 512 tokens)."""
    return TrimKV(budget=128 if budget is None else budget, **settings)
