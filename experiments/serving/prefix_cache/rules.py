"""Which node of a full tier goes, and whose turn it is: the rules' protocol, and the rules that need no graph and no clock."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection

from experiments.serving.prefix_cache.machine import Machine
from experiments.serving.prefix_cache.trace import Block, Request, Trace
from experiments.serving.prefix_cache.tree import Node, Tree


class Rule:
    """What a rule may answer; as it is, the least recently used node goes and requests are served in the order they come.

    A rule lives for one simulation: `begin` is called first.
    """

    def begin(self, trace: Trace, tree: Tree, machine: Machine) -> None:
        """What the simulation is about."""

    def on_arrival(self, request: Request, t: float) -> None:
        """A request came, its tool, if there was one, has ended."""

    def on_start(self, request: Request, waited: float, t: float) -> None:
        """It begins to run, `waited` seconds after it came."""

    def on_access(self, node: Node, t: float) -> None:
        """A request's prompt goes through the node; its `last_use` and `uses` say so already."""

    def on_turn_end(self, request: Request, path: list[Node], t: float) -> None:
        """It has ended; `path` holds its prompt and what it generated."""

    def victim(self, candidates: Collection[Node], t: float) -> Node:
        """The node to evict among leaves of a tier that nobody reads."""
        return min(candidates, key=lambda node: node.last_use)

    def order(self, request: Request, arrived: float) -> tuple[float, ...]:
        """Requests with less come first; among equals, in the order they came."""
        return (arrived,)

    def prefetched(self, t: float) -> list[Node]:
        """Nodes outside the device that should come to it in the background, most urgent first, parents before children."""
        return []

    def makes_way(self, wanted: Node) -> Callable[[Node], bool]:
        """Which nodes may go to make room for one that is prefetched."""
        return lambda node: False


class LRU(Rule):
    """The least recently used node goes: SGLang's rule for its radix tree, with slower tiers its hierarchical one."""


class LFU(Rule):
    """The node with the fewest accesses goes; among equals the least recently used."""

    def victim(self, candidates: Collection[Node], t: float) -> Node:
        """The fewest uses."""
        return min(candidates, key=lambda node: (node.uses, node.last_use))


class Oracle(Rule):
    """Belady's rule: the node that the rest of the trace wants last goes.

    The order is that in which requests would come if none waited and all was prefilled in no time. With blocks of equal size, one
    tier and requests one after the other nothing has more hits; otherwise it is a reference, not a bound.
    """

    def begin(self, trace: Trace, tree: Tree, machine: Machine) -> None:
        """Write down who wants each prefix, in the order of their times; prefixes are numbered, the empty one is 0."""
        times = _undelayed(trace, machine)
        ordered = sorted(trace.requests, key=lambda request: times[request.job, request.turn])
        self._place = {id(request): i for i, request in enumerate(ordered)}
        self._tree = tree
        self._numbers: dict[tuple[int, Block], int] = {}
        self._ends: dict[Node, int] = {}
        self._wanted: dict[int, list[int]] = defaultdict(list)
        self._started: set[int] = set()
        for place, request in enumerate(ordered):
            number = 0
            for block in request.blocks:
                number = self._numbers.setdefault((number, block), len(self._numbers) + 1)
                self._wanted[number].append(place)

    def on_start(self, request: Request, waited: float, t: float) -> None:
        """It wants nothing any more."""
        self._started.add(self._place[id(request)])

    def victim(self, candidates: Collection[Node], t: float) -> Node:
        """The farthest next use of the last block of its run, with those blocks of the run that are not wanted before."""
        node = max(candidates, key=lambda node: (self._next(self._end(node)), -node.last_use))
        *before, last = map(self._next, self._run(node))
        sooner = sum(place < last for place in before)
        if sooner:
            self._tree.split(node, sooner)
        return node

    def _end(self, node: Node) -> int:
        """The prefix that a node ends; its lower part, if it is split, ends the same."""
        if node not in self._ends:
            self._ends[node] = self._run(node)[-1]
        return self._ends[node]

    def _run(self, node: Node) -> list[int]:
        """The prefixes that a node's blocks end, -1 for those that nobody wants."""
        found = [0]
        for block in (block for part in node.path() for block in part.blocks):
            found.append(self._numbers.get((found[-1], block), -1))
        return found[-len(node.blocks) :]

    def _next(self, prefix: int) -> float:
        places = self._wanted.get(prefix, [])
        while places and places[0] in self._started:
            places.pop(0)
        return min((place for place in places if place not in self._started), default=math.inf)


def _undelayed(trace: Trace, machine: Machine) -> dict[tuple[str, int], tuple[float, int]]:
    """When each turn of each job would come, and after how many others of its job: tools and decoding alone take time."""
    found = {}
    for job, turns in trace.jobs().items():
        t = min(request.t for request in turns[0])
        for turn, requests in turns.items():
            found[job, turn] = (t, turn)
            t += max(machine.costs.decoding(x.prompt_tokens(trace.block), x.out_tokens) + x.tool_seconds for x in requests)
    return found
