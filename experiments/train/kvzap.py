"""KVzap: surrogates of KVzip's scores, by default from plain text; `--set hidden=0` is the linear map."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import KVzap

DATA = "text"
DEFAULTS = dict(hidden=512, threshold=-4.0, rate=5e-3, decay=0.01, clip=1.0, system=4, chunk=2048)


def learner(settings: Mapping[str, Any], budget: int | None) -> KVzap:
    """A surrogate of each layer.

    Raises:
        ValueError: a budget, which no part of the loss would know.
    """
    if budget is not None:
        raise ValueError("kvzap learns scores, not a budget: leave --budget out, and give threshold= where it is served")
    return KVzap(**settings)
