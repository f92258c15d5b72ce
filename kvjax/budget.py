"""Budgets as users give them: slots, or a share of the prompt."""

import math
from typing import Any

import numpy as np


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
