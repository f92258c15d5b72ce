"""KVFlow's rules: what is wanted in most steps goes first, and what is wanted soon is fetched from slower tiers ahead of time.

Source: KVFlow, arXiv 2507.07400, section 3. Differs: the released code evicts level by level in list order and lets a parent take
the largest value of its evicted children; here values are worked out anew, and the least recently used of equals goes.
"""

import math
from collections.abc import Callable, Collection

from experiments.serving.prefix_cache.machine import Machine
from experiments.serving.prefix_cache.rules import Rule
from experiments.serving.prefix_cache.step_graph import StepGraph
from experiments.serving.prefix_cache.trace import Block, Request, Trace
from experiments.serving.prefix_cache.tree import Node, Tree


class StepsToExecution(Rule):
    """The node that is wanted in most steps goes first.

    A node's value is the least over the agents whose fixed prompts go through it; other nodes, what was said to and by an agent,
    have inf. An agent's value is the least over the jobs under way; one that nothing leads to is a step beyond all others.

    Args:
        graph: None for that of the trace.
    """

    def __init__(self, graph: StepGraph | None = None) -> None:
        self._given = graph

    def begin(self, trace: Trace, tree: Tree, machine: Machine) -> None:
        """Nothing runs, no agent's prompt is known yet."""
        self._graph, self._tree = self._given or trace.graph, tree
        self._running: dict[str, tuple[int, frozenset[str]]] = {}
        self._prompts: dict[str, tuple[Block, ...]] = {}
        self._known: dict[frozenset[str], dict[str, float]] = {}

    def on_arrival(self, request: Request, t: float) -> None:
        """The job's turn is that of the request; its agent's fixed prompt is known from now on."""
        turn, agents = self._running.get(request.job, (-1, frozenset()))
        self._running[request.job] = (
            request.turn,
            agents | {request.agent} if turn == request.turn else frozenset({request.agent}),
        )
        self._prompts[request.agent] = request.blocks[: request.fixed]

    def on_turn_end(self, request: Request, path: list[Node], t: float) -> None:
        """A job that has ended leads to nothing."""
        if request.last:
            self._running.pop(request.job, None)

    def agents(self) -> dict[str, float]:
        """Steps to each known agent's execution."""
        found = dict.fromkeys(self._prompts, math.inf)
        for _, running in self._running.values():
            if running not in self._known:
                self._known[running] = self._graph.steps_to_execution(running)
            steps = self._known[running]
            found = {name: min(value, steps.get(name, math.inf)) for name, value in found.items()}
        beyond = 1 + max(len(self._graph.steps), *(x for x in (0, *found.values()) if x < math.inf))
        return {name: min(value, beyond) for name, value in found.items()}

    def values(self) -> dict[Node, float]:
        """Steps of each node of a fixed prompt."""
        found: dict[Node, float] = {}
        for agent, steps in self.agents().items():
            for node in self._tree.match(self._prompts[agent]):
                found[node] = min(steps, found.get(node, math.inf))
        return found

    def victim(self, candidates: Collection[Node], t: float) -> Node:
        """Most steps; among equals the least recently used."""
        values = self.values()
        return max(candidates, key=lambda node: (values.get(node, math.inf), -node.last_use))


class KVFlow(StepsToExecution):
    """The same, and prompts of agents that run within `ahead` steps are fetched in the background.

    A request whose prompt is on its way lets others go first. Room for what is fetched is made of what is wanted later.

    Args:
        graph: None for that of the trace.   ahead: steps.
    """

    def __init__(self, graph: StepGraph | None = None, *, ahead: int = 2) -> None:
        super().__init__(graph)
        self._ahead = ahead

    def prefetched(self, t: float) -> list[Node]:
        """Nodes of slower tiers, those wanted first at the front."""
        values = self.values()
        wanted = [node for node, steps in values.items() if node.tier > 0 and 1 <= steps <= self._ahead]
        return sorted(wanted, key=lambda node: (values[node], len(node.path()), -node.last_use))

    def makes_way(self, wanted: Node) -> Callable[[Node], bool]:
        """What is wanted later."""
        values = self.values()
        return lambda node: values.get(node, math.inf) > values.get(wanted, math.inf)
