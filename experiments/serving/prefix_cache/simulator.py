"""The simulation: requests come, wait, find what is cached of their prompts, prefill the rest, decode, and leave both behind.

Source: the rules' papers (KVFlow, arXiv 2507.07400; Continuum, arXiv 2511.02230); SGLang's radix tree (arXiv 2312.07104).
Differs: requests that run together do not slow each other, and only as many blocks of a leaf are evicted as room is wanted for.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count

from experiments.prefill_equivalents import Call, pte
from experiments.serving.prefix_cache.machine import Machine
from experiments.serving.prefix_cache.memory import Memory
from experiments.serving.prefix_cache.outcome import Outcome, spread
from experiments.serving.prefix_cache.rules import Rule
from experiments.serving.prefix_cache.trace import Request, Trace
from experiments.serving.prefix_cache.tree import Node, Tree


@dataclass
class Served:
    """A request on its way.

    Attributes:
        arrived, started: seconds.   hits: tokens found, by tier.   reserved: tokens of the device it holds outside the tree.
        end: the node its prompt ends in.
    """

    request: Request
    arrived: float
    number: int
    started: float = 0.0
    hits: list[int] = field(default_factory=list)
    reserved: int = 0
    end: Node | None = None


def simulate(trace: Trace, rule: Rule, machine: Machine) -> Outcome:
    """Run the trace to its end; the same arguments give the same outcome.

    Args:
        trace: what is asked.   rule: a fresh one.   machine: where it runs.

    Raises:
        ValueError: a request that the device could not hold alone.
    """
    most = max(x.prompt_tokens(trace.block) + x.out_tokens for x in trace.requests)
    if most > machine.tiers[0].tokens:
        raise ValueError(f"a request needs {most} tokens of cache, the device has {machine.tiers[0].tokens}: give it more memory")
    return _Run(trace, rule, machine).outcome()


class _Run:
    def __init__(self, trace: Trace, rule: Rule, machine: Machine) -> None:
        self.trace, self.rule, self.machine = trace, rule, machine
        self.tree = Tree(len(machine.tiers))
        rule.begin(trace, self.tree, machine)
        self.memory = Memory(self.tree, machine, rule, trace.block)
        self.events, self.numbers = [], count()
        self.waiting: list[Served] = []
        self.running, self.done = 0, []
        self.jobs, self.began, self.ended = trace.jobs(), {}, {}
        self.open: dict[str, int] = defaultdict(int)
        self.ready: dict[str, float] = defaultdict(float)  # when a turn's tools have ended, of those that were called so far
        for job, turns in self.jobs.items():
            for request in turns[0]:
                self._at(request.t, self._arrive, request)
            self.open[job] = len(turns[0])

    def outcome(self) -> Outcome:
        while self.events:
            now = self.events[0][0]
            while self.events and self.events[0][0] == now:
                _, _, event, what = heapq.heappop(self.events)
                event(what, now)
            self._admit(now)
        return self._told()

    def _at(self, t: float, event, what) -> None:
        heapq.heappush(self.events, (t, next(self.numbers), event, what))

    def _arrive(self, request: Request, now: float) -> None:
        self.began[request.job] = min(now, self.began.get(request.job, now))
        self.rule.on_arrival(request, now)
        self.waiting.append(Served(request, now, next(self.numbers)))

    def _admit(self, now: float) -> None:
        """Start what may start, in the rule's order; what waits for a transfer is passed over, what finds no room is waited for."""
        for served in sorted(self.waiting, key=lambda x: (*self.rule.order(x.request, x.arrived), x.number)):
            if self.running >= self.machine.running:
                return
            path = self.tree.match(served.request.blocks)
            if any(node.ready > now for node in path):
                continue
            if not self._start(served, path, now):
                return
            for node in self.memory.prefetch(now):
                self._at(node.ready, self._loaded, node)

    def _start(self, served: Served, path: list[Node], now: float) -> bool:
        """Take the room it needs, bring what slower tiers have, prefill the rest."""
        request, block = served.request, self.trace.block
        self._read(path, 1)
        tokens = [sum(len(x.blocks) for x in path if x.tier == tier) * block for tier in range(len(self.machine.tiers))]
        needed = request.prompt_tokens(block) + request.out_tokens - tokens[0]
        if not self.memory.make_room(0, needed, now):
            self._read(path, -1)
            return False
        path = path[-1].path() if path else []  # a rule that looks for prompts may have split a node of it
        self.rule.on_start(request, now - served.arrived, now)
        self._access(path, now)
        there = self.memory.fetch([node for node in path if node.tier > 0], now)
        self._at(there, self._fetched, served)
        served.started, served.hits, served.end = now, tokens, path[-1] if path else None
        served.reserved = needed - sum(tokens[1:])
        self.memory.reserved += served.reserved
        self.waiting.remove(served)
        self.running += 1
        prefilled = request.prompt_tokens(block) - sum(tokens)
        self._at(there + prefilled * self.machine.costs.prefill, self._prefilled, served)
        return True

    def _prefilled(self, served: Served, now: float) -> None:
        """The prompt's blocks are there for others; its agent's fixed prompt ends a node."""
        request = served.request
        self._leave(served, request.blocks, now, rest=request.new_tokens + request.out_tokens)
        self.tree.match(request.blocks[: request.fixed])
        context = request.prompt_tokens(self.trace.block)
        self._at(now + self.machine.costs.decoding(context, request.out_tokens), self._finished, served)

    def _finished(self, served: Served, now: float) -> None:
        request = served.request
        path = self._leave(served, request.blocks + request.out_blocks, now, rest=0)
        self._read(path, -1)
        self.running -= 1
        self.done.append(served)
        self.rule.on_turn_end(request, path, now)
        self.ready[request.job] = max(self.ready[request.job], now + request.tool_seconds)
        self.open[request.job] -= 1
        if not self.open[request.job]:
            self._next_turn(request, now)

    def _next_turn(self, request: Request, now: float) -> None:
        """When all of a turn have ended, and all tools, each of which runs from the end of the request that called it."""
        self.ended[request.job] = now
        coming = self.jobs[request.job].get(request.turn + 1, [])
        self.open[request.job] = len(coming)
        for following in coming:
            self._at(self.ready[request.job], self._arrive, following)

    def _loaded(self, node: Node, now: float) -> None:
        """What was fetched ahead is there; somebody may have waited for it."""
        self.memory.arrived(node)

    def _fetched(self, served: Served, now: float) -> None:
        """What a request had fetched is there; another may have waited for it."""

    def _leave(self, served: Served, blocks, now: float, *, rest: int) -> list[Node]:
        """Put blocks that were held outside the tree into it, and read them there; `rest` tokens stay outside."""
        old = served.end.path() if served.end else []
        held = {id(node) for node in old}
        self.memory.reserved -= served.reserved - rest
        served.reserved = rest
        path = self.tree.insert(blocks)
        self._read(old, -1)
        self._read(path, 1)
        self._access([node for node in path if id(node) not in held], now)
        served.end = path[-1] if path else None
        return path

    def _access(self, path: list[Node], now: float) -> None:
        for node in path:
            self.tree.access(node)
            self.rule.on_access(node, now)

    @staticmethod
    def _read(path: list[Node], change: int) -> None:
        for node in path:
            node.readers += change

    def _told(self) -> Outcome:
        block, costs = self.trace.block, self.machine.costs
        prompts = [x.request.prompt_tokens(block) for x in self.done]
        hits = [sum(tokens) for tokens in zip(*(x.hits for x in self.done), strict=True)]
        calls = [Call(n - sum(x.hits), n, x.request.out_tokens) for n, x in zip(prompts, self.done, strict=True)]
        return Outcome(
            requests=len(self.done),
            jobs=len(self.jobs),
            prompt_tokens=sum(prompts),
            hit_tokens=tuple(hits),
            recomputed_tokens=sum(prompts) - sum(hits),
            bytes_down=sum(self.memory.down) * costs.bytes_per_token,
            bytes_up=sum(self.memory.up) * costs.bytes_per_token,
            queueing=sum(x.started - x.arrived for x in self.done) / len(self.done),
            makespan=max(self.ended.values()) - min(self.began.values()),
            pte=pte(calls, costs.gamma),
            pte_16bit=pte(calls, costs.gamma_16bit),
            **spread([self.ended[job] - self.began[job] for job in self.jobs]),
        )
