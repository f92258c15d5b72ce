"""A cache of coded slots: what attention sees of one KV head while tokens come, whatever the codec.

A codec is here a function of rows [n, d] to what they are decoded to; one of pages is given whole pages.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from .held import causal

Code = Callable[[np.ndarray], np.ndarray]


def at_once(n: int) -> int:
    """Every token is coded as it comes, before its own step looks."""
    return n


def blocks(size: int) -> Callable[[int], int]:
    """All but n mod size are coded."""
    return lambda n: n - n % size


@dataclass
class Coded:
    """One side, keys or values: `rows` as they came, the first of them coded."""

    code: Code
    due: Callable[[int], int]
    page: int = 1
    sinks: int = 0
    rows: list[np.ndarray] = field(default_factory=list)
    coded: list[np.ndarray] = field(default_factory=list)

    def add(self, x: Float[np.ndarray, "m d"]) -> None:
        self.rows += list(x)
        if self.due is at_once:
            self.flush()

    def flush(self) -> None:
        """Code what is due, page by page."""
        while len(self.coded) < self.due(len(self.rows)):
            at = len(self.coded)
            self.coded += list(self.code(np.stack(self.rows[at : at + self.page]).astype(np.float64)))

    def seen(self) -> Float[np.ndarray, "n d"]:
        """The first sinks exact, then the coded ones, then the exact."""
        found = [*self.coded, *self.rows[len(self.coded) :]]
        found[: self.sinks] = self.rows[: self.sinks]
        return np.stack(found).astype(np.float64)


@dataclass
class CodedHead:
    """One KV head; `turn` rotates keys that are stored un-rotated, all of them, at every reading."""

    keys: Coded
    values: Coded
    turn: Code = lambda k: k

    def prompt(self, k: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"]) -> None:
        """A prompt that attended exactly."""
        self.keys.add(k)
        self.values.add(v)
        self.flush()

    def step(self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, " d"], v: Float[np.ndarray, " d"]) -> Float[np.ndarray, "g d"]:
        """The output of one token: append, attend, then code what is due."""
        self.keys.add(k[None])
        self.values.add(v[None])
        out = causal(q[:, None], self.turn(self.keys.seen()), self.values.seen())[:, 0]
        self.flush()
        return out

    def flush(self) -> None:
        self.keys.flush()
        self.values.flush()
