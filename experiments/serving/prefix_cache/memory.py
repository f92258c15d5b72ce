"""Room in tiers: what is evicted goes a tier down, or is gone; only leaves that nobody reads go, from their ends."""

from collections.abc import Callable

from experiments.serving.prefix_cache.machine import Machine
from experiments.serving.prefix_cache.rules import Rule
from experiments.serving.prefix_cache.tree import Node, Tree


class Memory:
    """The tree within the machine's capacities.

    Attributes:
        reserved: tokens of the device that running requests hold outside the tree.
        down, up: tokens that went into tier i from a faster one, and from there to the device.

    Args:
        tree: of as many tiers as the machine.   block: tokens of a block.
    """

    def __init__(self, tree: Tree, machine: Machine, rule: Rule, block: int) -> None:
        self._tree, self._machine, self._rule, self._block = tree, machine, rule, block
        self.reserved = 0
        self.down, self.up = [0] * len(machine.tiers), [0] * len(machine.tiers)
        self._link = [0.0] * len(machine.tiers)

    def free(self, tier: int) -> int:
        """Tokens that nothing holds."""
        held = self._tree.held[tier] * self._block + (self.reserved if tier == 0 else 0)
        return self._machine.tiers[tier].tokens - held

    def make_room(self, tier: int, tokens: int, t: float, allowed: Callable[[Node], bool] = lambda node: True) -> bool:
        """Evict until so many tokens are free; False, and nothing is evicted, where that cannot be."""
        loose = [node for node in self._tree.members[tier] if not node.readers and allowed(node)]
        if self.free(tier) + sum(len(node.blocks) for node in loose) * self._block < tokens:
            return False
        while (short := tokens - self.free(tier)) > 0:
            leaves = [node for node in self._tree.members[tier] if not node.readers and allowed(node) and _is_leaf(node)]
            node = self._rule.victim(leaves, t)
            wanted = -(-short // self._block)
            if wanted < len(node.blocks):
                self._tree.split(node, len(node.blocks) - wanted)
            self._evict(node, t)
        return True

    def fetch(self, nodes: list[Node], t: float) -> float:
        """Bring nodes to the device, where there is room already; each is `ready` when it is there; returns when the last is."""
        ready = t
        for node in nodes:
            tier, tokens = node.tier, len(node.blocks) * self._block
            spent = tokens * self._machine.costs.bytes_per_token / self._machine.tiers[tier].bandwidth
            node.ready = self._link[tier] = max(t, self._link[tier]) + spent
            ready = max(ready, node.ready)
            self.up[tier] += tokens
            self._tree.move(node, 0)
        return ready

    def prefetch(self, t: float) -> list[Node]:
        """Begin to bring what the rule wants on the device before it is asked for; such nodes are read until `arrived` is told."""
        begun = []
        for wanted in self._rule.prefetched(t):
            there = wanted in self._tree.members[wanted.tier]  # room for another may have cost it its place
            if there and wanted.tier > 0 and wanted.parent.tier == 0:
                self._read(wanted, 1)
                if self.make_room(0, len(wanted.blocks) * self._block, t, self._rule.makes_way(wanted)):
                    self.fetch([wanted], t)
                    begun.append(wanted)
                else:
                    self._read(wanted, -1)
        return begun

    def arrived(self, node: Node) -> None:
        """A transfer that `prefetch` began has ended."""
        self._read(node, -1)

    @staticmethod
    def _read(node: Node, change: int) -> None:
        for each in node.path():
            each.readers += change

    def _evict(self, node: Node, t: float) -> None:
        """To the first slower tier that can take it; what lies below it in a tier that it passes by goes on before it."""
        tokens, above = len(node.blocks) * self._block, node.tier
        for tier in range(above + 1, len(self._machine.tiers)):
            if self.make_room(tier, tokens, t):
                self.down[tier] += tokens
                self._tree.move(node, tier)
                return
            for below in reversed([x for x in node.below() if x.tier == tier]):
                self._evict(below, t)
        self._tree.drop(node)


def _is_leaf(node: Node) -> bool:
    """Of its tier: all below it is in slower ones."""
    return all(child.tier > node.tier for child in node.children.values())
