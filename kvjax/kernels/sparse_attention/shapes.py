"""Shapes met in use, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Operands of one call: KV heads, query heads of each, query rows, keys, head dimension, columns, distances, blocks a row."""

    h: int
    g: int
    t: int
    n: int
    d: int
    columns: int
    offsets: int
    blocks: int


SHAPES = {
    "smollm2-135m, vertical-slash, a prompt of 8k": Shape(3, 3, 8192, 8192, 64, 250, 1524, 0),
    "smollm2-135m, blocks, a prompt of 8k": Shape(3, 3, 8192, 8192, 64, 0, 1, 25),
    "llama-3-8b, vertical-slash, a prompt of 8k": Shape(8, 4, 8192, 8192, 128, 1000, 6096, 0),
    "llama-3-8b, A-shape, a prompt of 8k": Shape(8, 4, 8192, 8192, 128, 1024, 4096, 0),
}
