"""Attention-Gate: which tokens the rest of a text can do without, by default from plain text."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import AttentionGate

DATA = "text"
DEFAULTS = dict(
    target=0.5, weight=1.0, threshold=0.5, parts=4, width=32, bias=2.0, sinks=1, floor=1e-6, rate=1e-3, warmup=100, clip=1.0
)  # fmt: skip


def learner(settings: Mapping[str, Any], budget: int | None) -> AttentionGate:
    """Gates that keep a share `target` of the tokens.

    Raises:
        ValueError: a budget in slots, which no part of the loss would know.
    """
    if budget is not None:
        raise ValueError("attention_gate is trained for a share, not for slots: leave --budget out, and give --set target=SHARE")
    return AttentionGate(**settings)
