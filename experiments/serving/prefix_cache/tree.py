"""The cache: a radix tree over the blocks of prompts, each node in one tier of memory.

A node holds a run of blocks; it is split where a prompt parts from it. What lies below a node is in the same tier or a slower one.
"""

from collections.abc import Iterator, Sequence
from itertools import count

from experiments.serving.prefix_cache.trace import Block


class Node:
    """A run of blocks that follow each other in every prompt that has them.

    Attributes:
        blocks: the run.   parent, children: by the first block of each child's run.   tier: 0 is the device.
        last_use: number of the last access of all accesses to the tree.   uses: how many.   pin_until: seconds.
        ready: seconds at which a transfer to the device ends.   readers: running requests whose prompts go through here.
    """

    __slots__ = ("blocks", "parent", "children", "tier", "last_use", "uses", "pin_until", "ready", "readers")

    def __init__(self, blocks: tuple[Block, ...], parent: "Node | None", tier: int = 0) -> None:
        self.blocks, self.parent, self.tier = blocks, parent, tier
        self.children: dict[Block, Node] = {}
        self.last_use, self.uses, self.pin_until, self.ready, self.readers = 0, 0, 0.0, 0.0, 0

    def path(self) -> list["Node"]:
        """The nodes from the root's child down to this one."""
        found, node = [], self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def below(self) -> Iterator["Node"]:
        """All nodes under this one."""
        for child in self.children.values():
            yield child
            yield from child.below()


class Tree:
    """The nodes of all tiers, and how many blocks each tier holds.

    Args:
        tiers: how many there are.
    """

    def __init__(self, tiers: int) -> None:
        self._accesses = count()
        self.root = Node((), None)
        self.members: list[dict[Node, None]] = [{} for _ in range(tiers)]
        self.held = [0] * tiers

    def match(self, blocks: Sequence[Block]) -> list[Node]:
        """The path of the longest prefix of `blocks` that is held, in whichever tiers; split where it ends inside a node."""
        path, node, at = [], self.root, 0
        while at < len(blocks) and blocks[at] in node.children:
            node = node.children[blocks[at]]
            same = _alike(node.blocks, blocks[at:])
            if same < len(node.blocks):
                node = self.split(node, same)
            path.append(node)
            at += same
        return path

    def insert(self, blocks: Sequence[Block]) -> list[Node]:
        """The path of all of `blocks` on the device; what was not there is added, what was in a slower tier comes up."""
        path = self.match(blocks)
        for node in path:
            self.move(node, 0)
        at = sum(len(node.blocks) for node in path)
        if at < len(blocks):
            parent = path[-1] if path else self.root
            node = Node(tuple(blocks[at:]), parent)
            parent.children[node.blocks[0]] = node
            self._count(node, 1)
            path.append(node)
        return path

    def access(self, node: Node) -> None:
        """Somebody's prompt goes through the node."""
        node.last_use = next(self._accesses)
        node.uses += 1

    def split(self, node: Node, at: int) -> Node:
        """Cut a node in two after `at` blocks; returns the new upper part: `node` goes on as the lower."""
        upper = Node(node.blocks[:at], node.parent, node.tier)
        for name in ("last_use", "uses", "pin_until", "ready", "readers"):
            setattr(upper, name, getattr(node, name))
        node.parent.children[upper.blocks[0]] = upper
        node.blocks, node.parent = node.blocks[at:], upper
        upper.children = {node.blocks[0]: node}
        self.members[node.tier][upper] = None
        return upper

    def move(self, node: Node, tier: int) -> None:
        """Into another tier."""
        if node.tier != tier:
            self._count(node, -1)
            node.tier = tier
            self._count(node, 1)

    def drop(self, node: Node) -> None:
        """Forget a node and all below it."""
        for gone in (node, *node.below()):
            self._count(gone, -1)
        del node.parent.children[node.blocks[0]]

    def _count(self, node: Node, sign: int) -> None:
        self.held[node.tier] += sign * len(node.blocks)
        if sign > 0:
            self.members[node.tier][node] = None
        else:
            del self.members[node.tier][node]


def _alike(run: Sequence[Block], blocks: Sequence[Block]) -> int:
    """Length of the common beginning."""
    for i, (one, other) in enumerate(zip(run, blocks, strict=False)):
        if one != other:
            return i
    return min(len(run), len(blocks))
