"""Shapes met in use: rows, keys a row, how many are taken, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """`rows` lists of n keys of normal scores, the k largest of each."""

    rows: int
    n: int
    k: int


SHAPES = {
    "smollm2-135m, a step of all layers, 1k": Shape(90, 1024, 256),
    "smollm2-135m, a prompt of 8k": Shape(90, 8192, 2048),
    "smollm2-135m, a pivot's window, 32k": Shape(5, 32768, 5456),
    "llama-3-8b, a layer's heads flattened, 32k": Shape(1, 262144, 65536),
}
