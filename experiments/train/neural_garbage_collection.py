"""Neural Garbage Collection: a model that learns which blocks of its prompt to forget, by default on recall with noise."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import NeuralGarbageCollection

DATA = "marked"
DEFAULTS = dict(
    first=8, size=1, share=0.5, window=5, begin=0.7, prompts=8, rollouts=16, temperature=1.0, weight=1.0,
    rate=1e-3, floor=1e-5, warmup=100, later=3e-4, clip=1.0,
)  # fmt: skip


def learner(settings: Mapping[str, Any], budget: int | None) -> NeuralGarbageCollection:
    """All parameters, for a cache of which `share` of a prompt's blocks stay.

    Raises:
        ValueError: a budget in slots, which no part of the loss would know.
    """
    if budget is not None:
        raise ValueError("neural_garbage_collection learns with a share of the blocks: leave --budget out, and give --set share=S")
    return NeuralGarbageCollection(**settings)
