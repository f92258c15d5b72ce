"""Shapes met in use: rows of scores (query heads), slots each, and how peaked they are, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Scores of h KV heads with g query heads each over n slots, normal with this standard deviation."""

    h: int
    g: int
    n: int
    spread: float


SHAPES = {
    "smollm2-135m, 1k, peaked": Shape(3, 3, 1024, 3.0),
    "smollm2-135m, 8k": Shape(3, 3, 8192, 2.0),
    "smollm2-135m, 32k, nearly flat": Shape(3, 3, 32768, 0.3),
    "llama-3-8b, 32k": Shape(8, 4, 32768, 2.0),
}
