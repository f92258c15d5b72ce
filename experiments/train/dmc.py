"""DMC: which tokens a model averages into the slot before them, by default from plain text; the model's own weights are trained."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import DMC

DATA = "text"
DEFAULTS = dict(
    ratio=4.0, offset=5.0, temperature=0.1, weight=1.0, fade=0.2, hold=0.1, paths=("layers",), rate=3e-5, clip=1.0
)  # fmt: skip


def learner(settings: Mapping[str, Any], budget: int | None) -> DMC:
    """A model whose cache becomes `ratio` times smaller.

    Raises:
        ValueError: a budget in slots, which no part of the loss would know.
    """
    if budget is not None:
        raise ValueError("dmc is trained for a compression, not for slots: leave --budget out, and give --set ratio=N")
    return DMC(**settings)
