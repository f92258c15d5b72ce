"""Shapes met in use: slots of each region and how many of them have weight, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Weights of g query heads by t queries over regions of these lengths, a share of the slots nonzero; values of d numbers."""

    lengths: tuple[tuple[int, ...], ...]
    share: float
    g: int
    t: int
    d: int


SHAPES = {
    "smollm2-135m, 8k, a twentieth": Shape(((8064, 8064, 8064),), 0.05, 3, 1, 64),
    "smollm2-135m, 32k, half": Shape(((32768, 32768, 32768),), 0.5, 3, 1, 64),
    "smollm2-135m, a question": Shape(((1024, 900, 1000),), 0.3, 3, 24, 64),
    "qwen2.5-0.5b, a batch, all": Shape(((700, 33), (512, 64)), 1.0, 7, 1, 64),
    "llama-3-8b, 8k": Shape(((8192,) * 8,), 0.2, 4, 1, 128),
}
