"""What a simulation is told by: hits by tier, bytes moved, waiting, completion times, prefill token equivalents."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Outcome:
    """Of one trace under one rule on one machine.

    Attributes:
        prompt_tokens: of all prompts.   hit_tokens: found, by tier.   recomputed_tokens: prefilled.
        bytes_down, bytes_up: moved out of the device and back.   queueing: mean seconds a request waits to run.
        completion_mean, completion_p50, completion_p95: seconds from a job's arrival to its end.   makespan: until the last ends.
        pte: prefill token equivalents with the cache's own bytes.   pte_16bit: with those of the whole cache in 16 bits.
    """

    requests: int
    jobs: int
    prompt_tokens: int
    hit_tokens: tuple[int, ...]
    recomputed_tokens: int
    bytes_down: float
    bytes_up: float
    queueing: float
    completion_mean: float
    completion_p50: float
    completion_p95: float
    makespan: float
    pte: float
    pte_16bit: float

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were found in any tier."""
        return sum(self.hit_tokens) / self.prompt_tokens


def spread(seconds: list[float]) -> dict[str, float]:
    """Mean, median and 95th percentile of completion times."""
    p50, p95 = np.percentile(seconds, (50, 95))
    return {"completion_mean": float(np.mean(seconds)), "completion_p50": float(p50), "completion_p95": float(p95)}
