"""A fixed set of examples as batches without end, every epoch in an order of its own."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from jaxtyping import Int

from kvjax.train.batch import Batch, Example, Source, stacked


def digest_of(examples: Sequence[Example]) -> str:
    """Twelve hexadecimal digits over all ids and labels."""
    found = hashlib.sha256()
    for ids, label in examples:
        found.update(np.asarray(ids, np.int64).tobytes() + np.asarray(label, bool).tobytes() + b"/")
    return found.hexdigest()[:12]


@dataclass(frozen=True)
class Examples(Source):
    """Batch i holds places i·m .. (i + 1)·m - 1 of the examples, shuffled anew every epoch; m = parts · rows.

    Args:
        examples: padded to the longest of them.   rows: of a part.   parts: gradients are accumulated over.
        seed: of the order.

    Raises:
        ValueError: no examples.
    """

    examples: tuple[Example, ...]
    rows: int = 1
    parts: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.examples or min(self.rows, self.parts) < 1:
            raise ValueError(f"{len(self.examples)} examples in {self.parts} parts of {self.rows} rows make no batch")

    @cached_property
    def digest(self) -> str:
        return f"{digest_of(self.examples)}-{self.seed}-{self.parts}x{self.rows}"

    @cached_property
    def length(self) -> int:
        """Tokens of the longest example."""
        return max(len(example.ids) for example in self.examples)

    def batch(self, index: int) -> Batch:
        size = self.rows * self.parts
        places = range(index * size, (index + 1) * size)
        return stacked([self._at(place) for place in places], parts=self.parts, length=self.length)

    def _at(self, place: int) -> Example:
        epoch, at = divmod(place, len(self.examples))
        return self.examples[_order(self.seed, epoch, len(self.examples))[at]]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> Int[np.ndarray, " count"]:
    return np.random.default_rng((seed, epoch)).permutation(count)
