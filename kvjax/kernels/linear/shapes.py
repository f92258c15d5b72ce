"""Shapes met in use, as data for tests and benchmarks."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """`rows` of `inputs` numbers to `outputs`."""

    rows: int
    inputs: int
    outputs: int


SHAPES = {
    "smollm2-135m, q": Shape(1, 576, 576),
    "smollm2-135m, k": Shape(1, 576, 192),
    "smollm2-135m, gate": Shape(1, 576, 1536),
    "smollm2-135m, down": Shape(1, 1536, 576),
    "smollm2-135m, head": Shape(1, 576, 49152),
    "smollm2-135m, gate, three rows": Shape(3, 576, 1536),
    "smollm2-135m, gate, a prompt": Shape(2048, 576, 1536),
    "qwen2.5-0.5b, down": Shape(1, 4864, 896),
    "llama-3-8b, gate": Shape(1, 4096, 14336),
}
