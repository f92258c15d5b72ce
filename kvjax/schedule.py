"""When slots are evicted: once after the prompt, every k tokens, or when a head is full."""

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.stage import Schedule, Scorer
from kvjax.types import Number


@struct.dataclass
class AfterPrefill(Schedule):
    """Once, when the prompt has been read; decoded tokens are appended and never evicted."""


@struct.dataclass
class Every(Schedule):
    """Back to the budget every k tokens: the step attends to everything first, then the surplus goes.

    Args:
        k: tokens between evictions (1: one in, one out). A block of known tokens fed at once counts with its length.
        after_prefill: whether the prompt itself is cut to the budget before decoding.
        score: the scorer while decoding; None for the policy's own.
        grows: whether the selector may leave more than the budget, so that what is held can grow with the text.
    """

    decoding: ClassVar[bool] = True
    k: Number = 1
    after_prefill: bool = struct.field(pytree_node=False, default=True)
    score: Scorer | None = None
    grows: bool = struct.field(pytree_node=False, default=False)

    def due(self, steps: Int32[Array, " b"], new: Int32[Array, " b"], *, held: Any, budget: Any) -> Bool[Array, "*l b h"]:
        time = (steps // self.k > (steps - new) // self.k)[:, None]
        return time | jnp.zeros_like(held, bool) if self.grows else (held > budget) & time

    def headroom(self, new_tokens: int, block: int) -> int:
        return new_tokens if self.grows else min(int(self.k) - 1 + block, new_tokens)


@struct.dataclass
class WhenFull(Schedule):
    """Back to the budget when a head holds `slack` slots more than it: fewer, larger evictions.

    Args:
        slack: slots above the budget a head may fill before it is cut back.
        after_prefill: whether the prompt itself is cut to the budget before decoding.
        score: the scorer while decoding; None for the policy's own.
    """

    decoding: ClassVar[bool] = True
    slack: Number = 64
    after_prefill: bool = struct.field(pytree_node=False, default=True)
    score: Scorer | None = None

    def due(self, steps: Int32[Array, " b"], new: Int32[Array, " b"], *, held: Any, budget: Any) -> Bool[Array, "*l b h"]:
        del steps, new
        return held >= budget + jnp.maximum(self.slack, 1)

    def headroom(self, new_tokens: int, block: int) -> int:
        return min(max(int(self.slack), 1) - 1 + block, new_tokens)
