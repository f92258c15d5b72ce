"""Shapes met in use: what retrievers name of the slots that heads hold, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Operands of one call: slots named for each (row, KV head), the longest list, slots held, query heads a KV head, head size."""

    counts: tuple[tuple[int, ...], ...]
    m: int
    slots: int
    g: int
    d: int


SHAPES = {
    "smollm2-135m, 8k, a tenth": Shape(((819, 819, 819),), 1024, 3 * 8192, 3, 64),
    "smollm2-135m, 8k, by attention mass": Shape(((12, 1500, 230),), 2048, 3 * 8192, 3, 64),
    "qwen2.5-0.5b, a batch": Shape(((64, 700), (0, 33), (1, 512)), 1024, 3 * 8192, 7, 64),
    "llama-3-8b, 32k, Quest's 64 pages of 16": Shape(((1024,) * 8,), 1024, 8 * 32768, 4, 128),
    "llama-3-8b, 32k, skewed": Shape(((8192, 256, 512, 1024, 256, 300, 2048, 77),), 8192, 8 * 32768, 4, 128),
}
#: Those that a slow oracle can check.
SMALL = {name: shape for name, shape in SHAPES.items() if not name.startswith("llama")}
