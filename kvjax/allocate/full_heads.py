"""Heads that keep everything and heads of a fixed length, told apart offline (DuoAttention)."""

import hashlib
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int32

from kvjax.protocols import Decoder
from kvjax.ranges import Count
from kvjax.stage import Allocator
from kvjax.types import Number, Table, table
from kvjax.view import Ranking

#: Slots of a head that is never cut; far from where sums of 32 bits overflow.
UNBOUNDED = 1 << 30


def full_heads(
    alpha: Float[np.ndarray, "l h"], sparsity: float, noise: Float[np.ndarray, "l h"] | None = None
) -> Bool[np.ndarray, "l h"]:
    """Full where min(max(alpha, 0), 1) + noise reaches the quantile `sparsity` of all of them, float64.

    Args:
        alpha: one learned number a KV head.   sparsity: share of heads that stream; 0 makes all full, 1 none.
        noise: breaks ties where given (the release draws it below 1e-6); without it ties at the threshold are all full.

    Source: DuoAttention, arXiv 2410.10819, section 2.3, as released.
    """
    if not 0 <= sparsity <= 1:
        raise ValueError(f"sparsity is the share of heads that stream, 0 to 1; got {sparsity}")
    a = np.clip(np.asarray(alpha, np.float64), 0, 1)
    a = a if noise is None else a + noise
    if sparsity == 1:
        return np.zeros(a.shape, bool)
    return a >= np.quantile(a, sparsity)


def origin_of(pattern: np.ndarray) -> str:
    """A name for a pattern that two equal ones share."""
    return hashlib.sha256(np.packbits(pattern).tobytes() + str(pattern.shape).encode()).hexdigest()[:12]


@struct.dataclass
class FullHeads(Allocator):
    """b_lh without bound where the pattern says full, `slots` elsewhere; the mean budget is not read.

    A full head holds the whole prompt and goes on growing while decoding.

    Args:
        pattern: bool [L, H], True for full heads.
        slots: slots of every other head.
        origin: a name of the pattern; two allocators with one origin are equal.

    Raises (from `check`): ValueError for a pattern of another model.
    Source: DuoAttention, arXiv 2410.10819, section 2.3.
    """

    exact: ClassVar[bool] = False
    given: ClassVar[bool] = True
    pattern: Table = table()
    slots: Count = 320
    origin: str = struct.field(pytree_node=False, default="")

    @classmethod
    def of(cls, pattern: Number, slots: Number) -> "FullHeads":
        """From booleans, or zeros and ones, [L, H]."""
        given = np.asarray(pattern)
        if given.ndim != 2 or not np.isin(given, (0, 1)).all():
            raise ValueError(f"a pattern is booleans, or zeros and ones, one a KV head [L, H]; got {given.dtype} {given.shape}")
        return cls(pattern=given.astype(bool), slots=slots, origin=origin_of(given.astype(bool)))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        shape = np.shape(self.pattern)
        if shape != (model.layers, model.heads):
            raise ValueError(
                f"FullHeads wants one flag a KV head, [{model.layers}, {model.heads}]; got {list(shape)}: use this model's pattern"
            )

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        budget = jnp.where(jnp.asarray(self.pattern), UNBOUNDED, jnp.asarray(self.slots, jnp.int32))
        return jnp.broadcast_to(budget[:, None], ranking.scores.shape[:3])
