"""Continuum's rule: while a tool runs, its job's cache is pinned for as long as that is worth it; jobs are served in their order.

Source: Continuum, arXiv 2511.02230. Differs: the price of memory and the way its constants are found are ours; the paper's are
those of its workloads.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from experiments.serving.prefix_cache.machine import Machine
from experiments.serving.prefix_cache.rules import Rule
from experiments.serving.prefix_cache.trace import Request, Trace
from experiments.serving.prefix_cache.tree import Node, Tree


def utility(tau: float, durations: Sequence[float], *, queueing: float, psi: float, reload: float, price: float) -> float:
    """What pinning for tau seconds saves, less what it costs, in seconds.

        P(T <= tau) (Q psi + reload) - alpha cost(tau)

    Args:
        tau: seconds.   durations: of the tool so far; P is their empirical distribution.
        queueing: Q, mean seconds that a request waits.   psi: factor for the turns still to come.
        reload: seconds to have the context back if it is gone.   price: alpha cost(tau) / tau.
    """
    share = np.mean(np.asarray(durations) <= tau) if len(durations) else 0.0
    return float(share) * (queueing * psi + reload) - price * tau


def time_to_live(durations: Sequence[float], *, queueing: float, psi: float, reload: float, price: float) -> float:
    """tau*: the seconds with the largest utility, the fewest of equals.

    Between two durations utility only falls, so that 0 and the durations are all that can be best.

    Example:
        durations 1, 1, 2, 3, 10, Q = 4, psi = 1, reload = 2, price = 0.5: utility 0, 1.9, 2.6, 3.3, 1.0 at 0, 1, 2, 3, 10;
        tau* = 3.
    """
    how = dict(queueing=queueing, psi=psi, reload=reload, price=price)
    return max(sorted({0.0, *durations}), key=lambda tau: utility(tau, durations, **how))


class Durations:
    """How long each tool has run: the estimator of its distribution.

    Args:
        few: below so many samples of a tool those of all tools are taken together.
    """

    def __init__(self, few: int = 5) -> None:
        self._few, self._all = few, []
        self._of: dict[str, list[float]] = defaultdict(list)

    def update(self, tool: str, seconds: float) -> None:
        """A call has ended."""
        self._of[tool].append(seconds)
        self._all.append(seconds)

    def cdf(self, tool: str) -> list[float]:
        """The samples whose empirical distribution is the tool's."""
        own = self._of[tool]
        return own if len(own) >= self._few else self._all


class TimeToLive(Rule):
    """The cache of a job is pinned for some seconds after each turn but the last; of the rest the least recently used goes first.

    Where everything is pinned, what would stay pinned longest goes.

    Args:
        seconds: of each pin.   cap: the share of the device that may be pinned.
    """

    def __init__(self, seconds: float = 0.0, *, cap: float = 0.5) -> None:
        self._seconds, self._cap = seconds, cap

    def begin(self, trace: Trace, tree: Tree, machine: Machine) -> None:
        """Nothing is pinned."""
        self._tree, self._machine, self._block = tree, machine, trace.block

    def on_turn_end(self, request: Request, path: list[Node], t: float) -> None:
        """Pin the path, unless it is the job's last or too much is pinned."""
        until = t if request.last else t + self.seconds(request)
        mine = sum(len(node.blocks) for node in path if node.pin_until <= t)
        held = sum(len(node.blocks) for node in self._tree.members[0] if node.pin_until > t)
        if (mine + held) * self._block <= self._cap * self._machine.tiers[0].tokens:
            for node in path:
                node.pin_until = max(node.pin_until, until)

    def seconds(self, request: Request) -> float:
        """How long the cache of this request is pinned."""
        return self._seconds

    def victim(self, candidates: Collection[Node], t: float) -> Node:
        """The least recently used of what is not pinned."""
        free = [node for node in candidates if node.pin_until <= t]
        if free:
            return super().victim(free, t)
        return max(candidates, key=lambda node: (node.pin_until, -node.last_use))


class Continuum(TimeToLive):
    """Pinned for tau* of the tool that runs; requests of the job that came first are served first.

    price = alpha · the share of the device that the context takes: a second of a whole device costs the others alpha seconds.

    Args:
        alpha, psi: as in `time_to_live`.   few: of `Durations`.   cap: of `TimeToLive`.
    """

    def __init__(self, *, alpha: float = 1.0, psi: float = 1.0, few: int = 5, cap: float = 0.5) -> None:
        super().__init__(cap=cap)
        self._alpha, self._psi, self.durations = alpha, psi, Durations(few)

    def begin(self, trace: Trace, tree: Tree, machine: Machine) -> None:
        """No job has come, nobody has waited."""
        super().begin(trace, tree, machine)
        self._first: dict[str, float] = {}
        self._running: dict[str, tuple[str, float]] = {}
        self._waits: list[float] = []

    def on_arrival(self, request: Request, t: float) -> None:
        """The tool before it has ended; what it took is known now."""
        self._first.setdefault(request.job, t)
        if request.job in self._running:
            self.durations.update(*self._running.pop(request.job))

    def on_start(self, request: Request, waited: float, t: float) -> None:
        """One sample more of Q."""
        self._waits.append(waited)

    def on_turn_end(self, request: Request, path: list[Node], t: float) -> None:
        """Pin it, and remember which tool runs."""
        super().on_turn_end(request, path, t)
        if not request.last:
            self._running[request.job] = (request.tool, request.tool_seconds)

    def seconds(self, request: Request) -> float:
        """tau*."""
        context = request.prompt_tokens(self._block) + request.out_tokens
        return time_to_live(
            self.durations.cdf(request.tool),
            queueing=float(np.mean(self._waits)) if self._waits else 0.0,
            psi=self._psi,
            reload=context * self._machine.costs.prefill,
            price=self._alpha * context / self._machine.tiers[0].tokens,
        )

    def order(self, request: Request, arrived: float) -> tuple[float, ...]:
        """By the job's arrival."""
        return (self._first[request.job], arrived)
