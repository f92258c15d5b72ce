"""Shapes met in use, as data for tests and benchmarks: head counts of released models, lengths of real caches."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Shape:
    """Operands of one call: slots held by each (row, KV head), query heads a KV head, new tokens, head dimension."""

    lengths: tuple[tuple[int, ...], ...]
    g: int
    t: int
    d: int


#: One layer of Llama 3.1 8B after a head-wise budget: a few heads hold most of the slots.
LLAMA_SKEWED = Shape(((8192, 3072, 2048, 1024, 768, 512, 512, 256),), g=4, t=1, d=128)
#: One layer of SmolLM2 135M: an eighth of its context kept in every head, and all of it.
SMOLLM2_KEPT = Shape(((819, 819, 819),), g=3, t=1, d=64)
SMOLLM2_FULL = Shape(((8064, 8064, 8064),), g=3, t=1, d=64)
#: A question of 64 tokens over that cache, and a batch of rows.
SMOLLM2_QUESTION = Shape(((883, 883, 883),), g=3, t=64, d=64)
SMOLLM2_BATCH = Shape(tuple((200 + 37 * row, 64, 819) for row in range(20)), g=3, t=1, d=64)
#: Qwen2.5 0.5B: two KV heads of seven query heads each.
QWEN2_KEPT = Shape(((1024, 333),), g=7, t=1, d=64)

ALL = {
    "llama skewed": LLAMA_SKEWED,
    "smollm2 kept": SMOLLM2_KEPT,
    "smollm2 full": SMOLLM2_FULL,
    "smollm2 question": SMOLLM2_QUESTION,
    "smollm2 batch": SMOLLM2_BATCH,
    "qwen2 kept": QWEN2_KEPT,
}
#: Those that a slow oracle can check.
SMALL = {name: ALL[name] for name in ("smollm2 kept", "smollm2 question", "smollm2 batch", "qwen2 kept")}
