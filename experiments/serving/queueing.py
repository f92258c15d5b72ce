"""Requests that come at random to one machine: how long the first token takes, and how many tokens a second there are. Simulated.

An iteration is the prompt of the request that has waited longest, alone, where one waits and fewer than `at_once` run; else one
decode step of all that run. A request leaves after `new` tokens, the first of which its prefill gives.

    arrivals    Poisson: gaps are drawn from an exponential distribution of mean 1 / rate
    first token end of the request's prefill - its arrival
    throughput  all tokens / (end of the last step - first arrival)

Source: iteration-level scheduling, Orca (OSDI 2022), prompts first as vLLM does. Differs: all requests have one length; a prompt
is not cut into chunks, and nothing is preempted.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64


@dataclass(frozen=True)
class Server:
    """What a machine needs for a request.

    Attributes:
        prefill: seconds from its ids to its first token, alone.   step: seconds of a decode step by how many decode together.
        new: tokens of each, the first included.   at_once: requests whose caches fit.
    """

    prefill: float
    step: Callable[[int], float]
    new: int
    at_once: int

    def __post_init__(self):
        if self.new < 1 or self.at_once < 1 or self.prefill <= 0:
            raise ValueError(
                f"a server holds a request and gives a token, and reading takes time; got at_once={self.at_once}, new={self.new}, "
                f"prefill={self.prefill} s"
            )


@dataclass(frozen=True)
class Served:
    """Seconds to the first token: half of the requests wait less than `first_p50`, 95% less than `first_p95`. Tokens a second."""

    first_p50: float
    first_p95: float
    tokens_per_second: float


def arrivals(rate: float, count: int, seed: int) -> Float64[np.ndarray, " n"]:
    """Seconds at which `count` requests come, `rate` a second in the mean, ascending; the first at 0."""
    if rate <= 0 or count < 1:
        raise ValueError(f"requests come at a rate above 0, one at least; got rate={rate}, count={count}")
    gaps = np.random.default_rng(seed).exponential(1 / rate, count - 1)
    return np.concatenate([[0.0], gaps.cumsum()])


def serve(asked: Sequence[float], server: Server) -> Served:
    """Serve requests that come at `asked`, seconds, ascending.

    Example:
        serve([0, 1], Server(prefill=2, step=lambda running: 1.0, new=3, at_once=1))  # first tokens after 2 and 5, the end at 8
    """
    firsts, end = timeline(asked, server)
    waited = np.asarray(firsts) - np.asarray(asked)
    p50, p95 = np.percentile(waited, [50, 95])
    return Served(float(p50), float(p95), len(asked) * server.new / (end - asked[0]))


def timeline(asked: Sequence[float], server: Server) -> tuple[list[float], float]:
    """When each request has its first token, and when the last one has its last."""
    now, waiting, firsts = 0.0, deque(asked), []
    running: list[int] = []  # tokens that each still wants
    while waiting or running:
        if not running and waiting[0] > now:
            now = waiting[0]
        if waiting and waiting[0] <= now and len(running) < server.at_once:
            waiting.popleft()
            now += server.prefill
            firsts.append(now)
            running.append(server.new - 1)
        else:
            now += server.step(len(running))
            running = [left - 1 for left in running]
        running = [left for left in running if left]
    return firsts, now
