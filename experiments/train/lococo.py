"""LoCoCo: what a convolution mixes, by default from plain text."""

from collections.abc import Mapping
from typing import Any

from kvjax.train.learners import LoCoCo

DATA = "text"
DEFAULTS = dict(share=0.5, width=21, recent=0, chunk=128, every=17, rate=5e-5, conv_factor=1000.0, gamma_factor=1000.0)


def learner(settings: Mapping[str, Any], budget: int | None) -> LoCoCo:
    """Mixtures for heads of `budget` slots (128: the 512 of the paper hold all of a text of 512 tokens)."""
    return LoCoCo(budget=128 if budget is None else budget, **settings)
