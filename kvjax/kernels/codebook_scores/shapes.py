"""Shapes that occur: heads, query heads per KV head, head dimension, groups and centroids, by the model they come from."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """One layer's scores: `slots` a KV head, keys of head dimension d in m groups of c centroids."""

    h: int
    g: int
    d: int
    m: int
    c: int
    slots: int


SHAPES = {
    "smollm2-135m, 8k, 4 bits a channel": Shape(3, 3, 64, 32, 256, 8192),
    "smollm2-135m, 8k, 2 bits a channel": Shape(3, 3, 64, 16, 256, 8192),
    "smollm2-135m, 32k": Shape(3, 3, 64, 32, 256, 32768),
    "llama-3-8b, 32k, g = 32": Shape(8, 4, 128, 32, 8192, 32768),
    "llama-3-8b, 32k, g = 64": Shape(8, 4, 128, 64, 8192, 32768),
}
