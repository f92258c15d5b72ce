"""Small runs of training on the toy model."""

import numpy as np
import pytest

from kvjax.train import Example, Examples
from kvjax.train.learners import DuoAttention, TrimKV
from tests.conftest import ids_of

#: Sizes at which the toy model has something to learn.
TRIM = TrimKV(budget=8, hidden=16, bias=4.0, rate=2e-2)
DUO = DuoAttention(sinks=2, recent=6, rate=0.05, weight=0.5)


def texts(count: int, length: int = 40, seed: int = 0) -> tuple[Example, ...]:
    """Random texts whose last third is labelled."""
    label = tuple(i >= 2 * length // 3 for i in range(length))
    return tuple(Example(tuple(ids_of(length, 1000 * seed + i)), label) for i in range(count))


@pytest.fixture(scope="session")
def source() -> Examples:
    return Examples(texts(12), rows=2, parts=2)


def same(a, b) -> bool:
    """Equal to the bit."""
    import jax

    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))
