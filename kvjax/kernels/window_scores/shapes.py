"""Shapes met in use, as data for tests and benchmarks: the windows of published methods over prompts of released models."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Operands of one call: tokens of each row, slots they are padded to, KV heads, query heads of each, queries, head size."""

    lengths: tuple[int, ...]
    n: int
    h: int
    g: int
    w: int
    d: int


SHAPES = {
    "smollm2-135m, 8k, snapkv": Shape((8064,), 8192, 3, 3, 32, 64),
    "smollm2-135m, 8k, heterocache's last query": Shape((8064,), 8192, 3, 3, 1, 64),
    "smollm2-135m, a batch": Shape((1000, 17, 640), 1024, 3, 3, 32, 64),
    "qwen2.5-0.5b, 1k": Shape((1000,), 1024, 2, 7, 32, 64),
    "llama-3-8b, 32k, snapkv": Shape((32000,), 32768, 8, 4, 32, 128),
    "llama-3-8b, 32k, compresskv's four heads": Shape((32000,), 32768, 4, 1, 8, 128),
}
