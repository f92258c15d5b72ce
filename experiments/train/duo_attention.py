"""DuoAttention: which heads are full, by passkeys."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import DuoAttention

DATA = "passkeys"
DEFAULTS = dict(sinks=128, recent=256, weight=0.05, rate=0.02)


def learner(settings: Mapping[str, Any], budget: int | None) -> DuoAttention:
    """Streaming heads of `budget` slots, the sinks among them; of sinks + recent without one.

    Raises:
        ValueError: a budget that the sinks fill.
    """
    if budget is None:
        return DuoAttention(**settings)
    if budget <= settings["sinks"]:
        raise ValueError(f"a streaming head of {budget} slots leaves nothing beside {settings['sinks']} sinks: --set sinks=N")
    return DuoAttention(**{**settings, "recent": budget - settings["sinks"]})
