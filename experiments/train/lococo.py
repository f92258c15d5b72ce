"""LoCoCo: what a convolution mixes, by default from plain text."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import LoCoCo

DATA = "text"
DEFAULTS = dict(share=0.5, width=21, recent=0, chunk=512, every=17, rate=5e-5, conv_factor=1000.0, gamma_factor=1000.0)


def learner(settings: Mapping[str, Any], budget: int | None) -> LoCoCo:
    """Mixtures for heads of `budget` slots (512)."""
    return LoCoCo(**settings) if budget is None else LoCoCo(budget=budget, **settings)
