"""Shapes met in use, as data for tests and benchmarks: prompts and chunks of prompts of released models."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Operands of one call: KV heads, query heads of each, query rows, keys, head dimension, first row's position, window."""

    h: int
    g: int
    t: int
    n: int
    d: int
    offset: int
    window: int | None = None


SHAPES = {
    "smollm2-135m, a prompt of 2k": Shape(3, 3, 2048, 2048, 64, 0),
    "smollm2-135m, the last chunk of 8k": Shape(3, 3, 1024, 8192, 64, 7168),
    "qwen2.5-0.5b, a prompt of 1k": Shape(2, 7, 1024, 1024, 64, 0),
    "llama-3-8b, a chunk in the middle of 8k": Shape(8, 4, 1024, 8192, 128, 4096),
    "mistral-7b, a chunk beyond its window": Shape(8, 4, 1024, 8192, 128, 7168, 4096),
}
