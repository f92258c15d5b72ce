"""Prefill token equivalents (PTE): what a run of calls costs, in tokens prefilled on the same accelerator.

    PTE = sum over calls of (P + gamma S O),   gamma = 2 L D HOI / N
    gamma' = gamma (H_kv d / D)(bits / 16)                                      for grouped heads and coded caches

P tokens are prefilled in a call, S is its context, O tokens are generated; L layers of width D, N parameters; HOI: peak FLOP/s
over bytes/s of memory. Reading 2 L D entries of 16 bits for each cached token, against 2 N FLOPs for each prefilled one, gives
this gamma. With gamma' and S counted in stored entries PTE sees what compression does. Source: "Beyond Accuracy: Unveiling
Inefficiency Patterns in Tool-Integrated Reasoning" (arXiv 2604.05404, ACL 2026); gamma' is ours.
"""

from collections.abc import Iterable
from typing import NamedTuple

#: FLOP/s of dense 16-bit products and bytes/s of memory, as their maker gives them.
HARDWARE = {"H100": (989e12, 3.35e12), "A100": (312e12, 2.039e12)}


class Call(NamedTuple):
    """Tokens prefilled in a call (all of its context, if the cache was dropped before), its context, tokens generated."""

    prefilled: float
    context: float
    generated: float


def intensity(hardware: str) -> float:
    """HOI of a card of HARDWARE. Raises ValueError for another."""
    if hardware not in HARDWARE:
        raise ValueError(f"no figures for {hardware!r}, only for {', '.join(HARDWARE)}")
    flops, bandwidth = HARDWARE[hardware]
    return flops / bandwidth


def gamma(layers: int, width: int, parameters: int, hoi: float) -> float:
    """Prefill tokens that reading one cached token costs, all heads having keys of their own, at 16 bits.

    Example:
        gamma(32, 4096, 8_030_000_000, intensity("H100")) ≈ 0.00964
    """
    return 2 * layers * width * hoi / parameters


def pte(calls: Iterable[Call], gamma: float) -> float:
    """The sum over calls.

    Example:
        pte([Call(1000, 1000, 100), Call(1300, 1300, 50)], 0.01) == 3950
    """
    return sum(call.prefilled + gamma * call.context * call.generated for call in calls)
