"""Shapes met in use: what evictions while decoding leave of regions, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Operands of one call: slots each (row, KV head) holds and keeps, the view's padding, numbers of a key's and a value's row."""

    lengths: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, ...], ...]
    cap: int
    k: int
    v: int


SHAPES = {
    "smollm2-135m, h2o: one in, one out": Shape(((820, 820, 820),), ((819, 819, 819),), 1024, 64, 64),
    "smollm2-135m, every 64 tokens, a batch": Shape(((883, 128, 883),) * 3, ((819, 64, 819),) * 3, 1024, 64, 64),
    "smollm2-135m, the prompt cut late": Shape(((2048, 2048, 2048),), ((205, 205, 205),), 2048, 64, 64),
    "llama-3-8b, skewed, one row due": Shape(
        ((8193, 257, 513, 1025, 301, 78), (900,) * 6), ((8192, 256, 512, 1024, 300, 77), (900,) * 6), 16384, 128, 128
    ),
    "llama-3-8b, codes g = 32, when full": Shape(((1088,) * 8,), ((1024,) * 8,), 2048, 32, 128),
}
