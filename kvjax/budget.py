"""Budgets as users give them: slots, or a share of the prompt."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32


def check_budget(budget: Any) -> None:
    """A positive integer of slots, or a share in (0, 1]; anything traced passes."""
    if isinstance(budget, bool) or (budget is None) or isinstance(budget, str):
        raise TypeError(f"budget must be an int (mean slots per KV head) or a float in (0, 1] (share kept); got {budget!r}")
    if isinstance(budget, int | np.integer) and budget < 1:
        raise ValueError(f"budget must be at least 1 slot per KV head; got {budget}")
    if isinstance(budget, float | np.floating) and not (math.isfinite(budget) and 0.0 < budget <= 1.0):
        raise ValueError(
            f"a float budget is the share of the prompt kept, in (0, 1]; got {budget}. For a number of slots pass an int"
        )


def slots_of(budget: int | float, length: int) -> int:
    """A budget as slots per KV head: an int as it is, a share as floor(share · length), at least 1."""
    if isinstance(budget, int | np.integer):
        return int(budget)
    return max(1, math.floor(length * float(budget) + 1e-9))


def share_of(budget: Any, length: Int32[Array, " b"]) -> Float32[Array, " b"]:
    """A budget inside a program, slots or a share, as a share of `length` tokens, at most 1."""
    budget = jnp.asarray(budget)
    share = budget / length if jnp.issubdtype(budget.dtype, jnp.integer) else jnp.broadcast_to(budget, length.shape)
    return jnp.minimum(share, 1.0).astype(jnp.float32)


def slots_in(budget: Any, length: Int32[Array, " b"]) -> Int32[Array, " b"]:
    """A budget inside a program as slots of `length` tokens, at least 1: see `slots_of`."""
    budget = jnp.asarray(budget)
    slots = budget if jnp.issubdtype(budget.dtype, jnp.integer) else jnp.floor(length * budget * (1 + 1e-6))
    return jnp.clip(jnp.broadcast_to(slots, length.shape).astype(jnp.int32), 1, length)
