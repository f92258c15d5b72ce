"""Shapes met in use: one decoded token and a question's block, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Operands of one call: slots of each (row, KV head), real tokens of each row, t, numbers a key and a value, their dtypes."""

    lengths: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    t: int
    k: int
    v: int
    dtypes: tuple[str, str]


SHAPES = {
    "smollm2-135m, a token": Shape(((819, 819, 819),), (1,), 1, 64, 64, ("float32", "float32")),
    "smollm2-135m, a batch, a row has stopped": Shape(((200, 64, 819),) * 3, (1, 0, 1), 1, 64, 64, ("bfloat16", "bfloat16")),
    "smollm2-135m, a question": Shape(((883, 883, 883), (64, 2, 9)), (64, 17), 64, 64, 64, ("float32", "float32")),
    "llama-3-8b, a token, skewed": Shape(((8192, 256, 512, 1024, 300, 77),), (1,), 1, 128, 128, ("bfloat16", "bfloat16")),
    "llama-3-8b, a token, codes g = 32": Shape(((1024,) * 8,), (1,), 1, 32, 128, ("uint16", "bfloat16")),
}
