"""Shapes of sparse prompt attention, one a query head (MInference): which keys a query sees."""

from dataclasses import dataclass

import numpy as np

#: The released code's sizes where nothing was calibrated.
VERTICAL, SLASH = 1000, 6096
#: First columns and nearest offsets that a vertical-slash head always sees, and the least it sees of both.
FORCED_COLUMNS, FORCED_OFFSETS, LEAST_COLUMNS, LEAST_OFFSETS = 30, 100, 30, 50


@dataclass(frozen=True)
class Pattern:
    """A head's pattern as five sizes; each kind sets its own."""

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """(first columns, nearest offsets, columns by score, offsets by score, key blocks by score)."""
        raise NotImplementedError(f"{type(self).__name__} must define sizes")


@dataclass(frozen=True)
class AShape(Pattern):
    """The first `first` keys, and the last `recent` up to the query."""

    first: int = 128
    recent: int = 3968

    def __post_init__(self):
        if self.first < 0 or self.recent < 1:
            raise ValueError(f"AShape wants first >= 0 and recent >= 1 (a query sees itself); got {self}")

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return self.first, self.recent, 0, 0, 0


@dataclass(frozen=True)
class VerticalSlash(Pattern):
    """The `vertical` columns and `slash` diagonals that the last queries of a chunk give most to.

    At least 30 and 50 of them: the first 30 columns and the offsets 0 to 99 come first, whatever their scores.
    """

    vertical: int = VERTICAL
    slash: int = SLASH

    def __post_init__(self):
        if self.vertical < 0 or self.slash < 0:
            raise ValueError(f"VerticalSlash wants sizes of 0 or more; got {self}")

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return 0, 0, max(self.vertical, LEAST_COLUMNS), max(self.slash, LEAST_OFFSETS), 0


@dataclass(frozen=True)
class BlockSparse(Pattern):
    """For each block of 64 queries the `blocks` blocks of 64 keys of the largest pooled product, its own among them."""

    blocks: int = 100

    def __post_init__(self):
        if self.blocks < 1:
            raise ValueError(f"BlockSparse wants at least 1 block; got {self}")

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return 0, 0, 0, 0, self.blocks


#: Kinds by their number in a table [layers, query heads, 3] of (kind, size, size).
KINDS = (AShape, VerticalSlash, BlockSparse)


def of_table(table: np.ndarray) -> tuple[tuple[Pattern, ...], ...]:
    """Patterns of an int table [L, H_q, 3]: the kind's number (0 A-shape, 1 vertical-slash, 2 block-sparse) and its sizes."""
    table = np.asarray(table)
    if table.ndim != 3 or table.shape[-1] != 3 or not np.isin(table[..., 0], range(len(KINDS))).all():
        raise ValueError(f"a table of patterns is int [layers, query heads, 3], its first number 0, 1 or 2; got {table.shape}")
    return tuple(tuple(_pattern(*(int(i) for i in head)) for head in layer) for layer in table)


def as_table(patterns: tuple[tuple[Pattern, ...], ...]) -> np.ndarray:
    """Patterns as `of_table` reads them."""
    return np.array([[_entry(pattern) for pattern in layer] for layer in patterns], np.int32)


def sizes_of(patterns: tuple[Pattern, ...]) -> np.ndarray:
    """int32 [heads, 5]: each pattern's sizes."""
    return np.array([pattern.sizes for pattern in patterns], np.int32)


def _pattern(kind: int, one: int, two: int) -> Pattern:
    return BlockSparse(one) if KINDS[kind] is BlockSparse else KINDS[kind](one, two)


def _entry(pattern: Pattern) -> tuple[int, int, int]:
    first, recent, columns, offsets, blocks = pattern.sizes
    if isinstance(pattern, BlockSparse):
        return 2, blocks, 0
    return (0, first, recent) if isinstance(pattern, AShape) else (1, columns, offsets)
