"""Seeded inputs of authors' codes and what those answered (tests/data/golden_methods)."""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[1] / "data" / "golden_methods"


def load(name: str) -> dict[str, np.ndarray]:
    """Every array of one file; floats as float64."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        return {key: a.astype(np.float64) if a.dtype.kind == "f" else a for key, a in stored.items()}


def grouped(q: np.ndarray, heads: int) -> np.ndarray:
    """[query heads, ...] as [h, g, ...]."""
    return q.reshape(heads, -1, *q.shape[1:])
