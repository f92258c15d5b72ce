"""HeteroCache decoding head by head: what each KV head holds, attends to and is sent, in float64.

The rest of the model is given as a function of one layer; here is what happens in its attention.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from . import heterocache as hc
from .softmax import softmax


@dataclass
class Head:
    """One KV head: the prompt's positions it holds (ascending), the whole prompt, and what was generated since."""

    held: list[int]
    k: Float[np.ndarray, "n d"]
    v: Float[np.ndarray, "n d"]
    new: list = field(default_factory=list)

    def attend(self, q: Float[np.ndarray, "g d"]) -> Float[np.ndarray, "g d"]:
        k = np.stack([*self.k[self.held], *(k for k, _ in self.new)])
        v = np.stack([*self.v[self.held], *(v for _, v in self.new)])
        return softmax(q @ k.T / np.sqrt(q.shape[1])) @ v


class Decoding:
    """All heads of a model after a prompt: full heads hold all of it, compressed ones the best L_h by the last query.

    What a window asks for at step t is written after the attention of step t + 1.
    """

    def __init__(self, q, k, v, tables: dict, *, base: int, theta: float, w: int = 5, size: int = 5):
        """q [l h g d] last prompt queries, k and v [l h n d]."""
        role, cluster, n = tables["role"], tables["cluster"], k.shape[2]
        self.size, self.cluster, self.role, self.monitors, self.asked, self.new = size, cluster, role, {}, {}, {}
        lengths = np.where(hc.is_full(role), n, 0)
        lengths[~hc.is_full(role)] = hc.lengths_floor(base, tables["alloc_ratio"][~hc.is_full(role)].astype(float), n)
        self.heads = {}
        for at in np.ndindex(role.shape):
            scores = hc.focus(q[at], k[at], size)
            self.heads[at] = Head(sorted(hc.best(scores, lengths[at])), k[at], v[at])
            if role[at] == hc.PIVOT:
                wanted = [int(lengths[at[0], m]) for m in self.members(at)]
                self.monitors[at] = hc.Monitor(hc.best(scores, base), base, wanted, theta, w)

    def members(self, pivot: tuple[int, int]) -> list[int]:
        layer, h = pivot
        return [m for m, p in enumerate(self.cluster[layer]) if p == h and self.role[layer, m] == hc.SATELLITE]

    def attend(self, layer: int, q, k, v) -> Float[np.ndarray, "h g d"]:
        """One token's attention in one layer: q [h g d], k and v [h d]."""
        out = []
        for h in range(len(k)):
            head = self.heads[layer, h]
            head.new.append((k[h].astype(np.float64), v[h].astype(np.float64)))
            out.append(head.attend(q[h].astype(np.float64)))
            if (layer, h) in self.monitors:
                found = self.monitors[layer, h].see(hc.focus(q[h], head.k, self.size))
                if found is not None:
                    self.new[layer, h] = found
        return np.stack(out)

    def end(self) -> None:
        """What was asked for a step ago arrives; what was asked for in this one is on its way."""
        for pivot, found in self.asked.items():
            for m, positions in zip(self.members(pivot), found, strict=True):
                self.heads[pivot[0], m].held = positions
        self.asked, self.new = self.new, {}
