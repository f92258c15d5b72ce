"""Stochastic KV routing: a model whose layers can do without a cache of their own, by default on recall."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import StochasticKVRouting

DATA = "recall"
DEFAULTS = dict(share=0.5, rate=1e-3, floor=1e-5, warmup=100, decay=0.0, clip=1.0, remat=True)


def learner(settings: Mapping[str, Any], budget: int | None) -> StochasticKVRouting:
    """All parameters, for any set of kept layers.

    Raises:
        ValueError: a budget, which no part of the loss would know.
    """
    if budget is not None:
        raise ValueError("stochastic_kv_routing is trained for any set of kept layers: leave --budget out")
    return StochasticKVRouting(**settings)
