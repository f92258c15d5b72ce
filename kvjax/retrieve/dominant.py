"""Which channels of a head say by themselves what it looks at, as static structure that programs are compiled for (FASA)."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int, PyTree


@dataclass(frozen=True)
class HalfSplit:
    """The rotary embedding turns channels i and i + d/2 together: Hugging Face's layout."""

    def channels(self, d: int) -> Int[np.ndarray, "half 2"]:
        """The channels of each pair."""
        return np.stack([np.arange(d // 2), np.arange(d // 2) + d // 2], 1)


@dataclass(frozen=True)
class Interleaved:
    """Channels 2i and 2i + 1 are one pair, as the release has it."""

    def channels(self, d: int) -> Int[np.ndarray, "half 2"]:
        """The channels of each pair."""
        return np.arange(d).reshape(-1, 2)


@dataclass(frozen=True)
class Dominant:
    """The dominant channels of all query heads, hashable.

    Args:
        channels: [L][H_q], ascending channels of each query head.   heads: KV heads.   d: head dimension.

    Raises:
        ValueError: a pair that is none, query heads that KV heads do not share evenly.
    """

    channels: tuple[tuple[tuple[int, ...], ...], ...] = field(repr=False)
    heads: int
    d: int

    @classmethod
    def of(cls, pairs: PyTree, heads: int, d: int, layout: HalfSplit | Interleaved = HalfSplit()) -> "Dominant":
        """From a table of frequency pairs [L, H_q, N]; a table [L, H, N] is for all query heads of a KV head."""
        pairs, known = np.asarray(pairs), layout.channels(d)
        if pairs.ndim != 3 or pairs.shape[1] % heads or pairs.min() < 0 or pairs.max() >= len(known):
            most = len(known)
            raise ValueError(f"pairs is a table [layers, heads, N] of numbers below {most} for {heads} KV heads; got {pairs.shape}")

        def of_head(row):
            return tuple(int(c) for c in np.unique(known[row]))

        return cls(tuple(tuple(of_head(row) for row in layer) for layer in pairs), heads, d)

    @cached_property
    def width(self) -> int:
        """c: most channels that the query heads of any KV head have between them."""
        return max(len(self._union(layer, h)) for layer in range(len(self.channels)) for h in range(self.heads))

    def _groups(self, layer: int) -> int:
        return len(self.channels[layer]) // self.heads

    def _union(self, layer: int, h: int) -> list[int]:
        """Channels of a KV head's query heads."""
        g = self._groups(layer)
        return sorted({c for head in self.channels[layer][h * g : (h + 1) * g] for c in head})

    def mask(self, layer: int, groups: int) -> Bool[np.ndarray, "h g d"]:
        """Which channels each query head is scored by."""
        found = np.zeros((self.heads, groups, self.d), bool)
        for h in range(self.heads):
            for g in range(groups):
                own = h * self._groups(layer) + (g if self._groups(layer) > 1 else 0)
                found[h, g, list(self.channels[layer][own])] = True
        return found

    def order(self, layer: int) -> Int[np.ndarray, "h d"]:
        """All channels of each KV head: `width` of them first, the dominant ones included, then the others."""
        first = [(mine := self._union(layer, h)) + self._others(mine)[: self.width - len(mine)] for h in range(self.heads)]
        return np.array([sorted(head) + self._others(head) for head in first])

    def _others(self, channels: list[int]) -> list[int]:
        return [c for c in range(self.d) if c not in channels]
