"""When slots are evicted: once after the prompt, every k tokens, or when a head is full."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.budget import check_whole
from kvjax.evidence import Need
from kvjax.stage import Scorer, Stage
from kvjax.types import Number


class Schedule(Stage):
    """When slots are evicted.

    Attributes:
        decoding: whether anything is evicted while decoding; if not, score, allocate, select and merge are not part of the decode
            program.
        after_prefill: whether the prompt is cut to its budget before the first token is decoded.
        score: the scorer while decoding; None for the policy's own.
        reallocate: whether budgets are shared out anew when a row is due, all its layers together.
        grows: whether the selector may leave more than the budget.
    """

    decoding: ClassVar[bool] = False
    after_prefill: bool = True
    score: Scorer | None = None
    reallocate: bool = False
    grows: bool = False

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset() if self.score is None else self.score.needs

    def due(self, steps: Int32[Array, " b"], new: Int32[Array, " b"], *, held: Number, budget: Number) -> Bool[Array, "*l b h"]:
        """Which heads are cut back to their budget after a step; `steps` counts a row's tokens since the prompt, `new` included."""
        raise NotImplementedError(f"{type(self).__name__} never evicts while decoding")

    def until_next(self, new: Int32[Array, " b"]) -> Int32[Array, " b"]:
        """Most tokens a row takes before it can be due again, `new` at a time."""
        raise NotImplementedError(f"{type(self).__name__} never shares out budgets anew")

    def headroom(self, new_tokens: int, block: int) -> int:
        """Slots a head needs above its budget to take `new_tokens` more tokens, `block` at a time."""
        del block
        return new_tokens

    def fullest(self, length: np.ndarray, budget: np.ndarray, new_tokens: int, block: int) -> np.ndarray:
        """Most slots each region holds while `new_tokens` more come, `block` at a time.

        Args:
            length, budget: slots in use, and what an eviction cuts back to, int [L, B, H].

        Returns:
            int [L, B, H]. A schedule that evicts needs room only up to its next eviction.
        """
        settled = np.maximum(length, np.minimum(budget, length + new_tokens)) if self.decoding else length
        headroom = self.headroom(new_tokens, block)
        return settled + headroom if self.reallocate else np.minimum(settled + headroom, length + new_tokens)


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
        reallocate: whether the allocator shares out a row's slots anew at every eviction, so that heads trade slots. All layers are
            ranked at once; the allocator must be exact and read scores alone.
        growth: slots by which a head may outgrow its budget in one call of `decode` or `extend`. Room for them is reserved; regions
            are rounded up to 8 slots, and a head may fill its region.

    Raises:
        ValueError: both `grows` and `reallocate`, whose totals contradict each other; a k that is no whole number of at least 1, a
            growth that is none of at least 0.
    """

    decoding: ClassVar[bool] = True
    k: Number = 1
    after_prefill: bool = struct.field(pytree_node=False, default=True)
    score: Scorer | None = None
    grows: bool = struct.field(pytree_node=False, default=False)
    reallocate: bool = struct.field(pytree_node=False, default=False)
    growth: int = struct.field(pytree_node=False, default=64)

    def __post_init__(self):
        if self.grows and self.reallocate:
            raise ValueError("Every(grows=True) lets a total grow, Every(reallocate=True) keeps it: choose one")
        check_whole("Every.k", self.k, 1)
        check_whole("Every.growth", self.growth, 0)

    def due(self, steps: Int32[Array, " b"], new: Int32[Array, " b"], *, held: Number, budget: Number) -> Bool[Array, "*l b h"]:
        time = (steps // self.k > (steps - new) // self.k)[:, None]
        if self.reallocate:
            return time & jnp.broadcast_to((held.sum((0, 2)) > budget.sum((0, 2)))[:, None], held.shape)
        return time | jnp.zeros_like(held, bool) if self.grows else (held > budget) & time

    def until_next(self, new: Int32[Array, " b"]) -> Int32[Array, " b"]:
        return jnp.asarray(self.k, jnp.int32) - 1 + new

    def headroom(self, new_tokens: int, block: int) -> int:
        until_next = int(self.k) - 1 + block
        if self.reallocate:
            return min(self.growth, new_tokens) + until_next
        return new_tokens if self.grows else min(until_next, new_tokens)


@struct.dataclass
class WhenFull(Schedule):
    """Back to the budget when a head holds `slack` slots more than it: fewer, larger evictions.

    Args:
        slack: slots above the budget a head may fill before it is cut back; 0 as 1.
        after_prefill: whether the prompt itself is cut to the budget before decoding.
        score: the scorer while decoding; None for the policy's own.

    Raises:
        ValueError: a slack that is no whole number of at least 0.
    """

    decoding: ClassVar[bool] = True
    slack: Number = 64
    after_prefill: bool = struct.field(pytree_node=False, default=True)
    score: Scorer | None = None

    def __post_init__(self):
        check_whole("WhenFull.slack", self.slack, 0)

    def due(self, steps: Int32[Array, " b"], new: Int32[Array, " b"], *, held: Number, budget: Number) -> Bool[Array, "*l b h"]:
        del steps, new
        return held >= budget + jnp.maximum(self.slack, 1)

    def headroom(self, new_tokens: int, block: int) -> int:
        return min(max(int(self.slack), 1) - 1 + block, new_tokens)
