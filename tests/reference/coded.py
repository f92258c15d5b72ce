"""A cache of coded slots: what attention sees of one KV head while tokens come, whatever the codec.

A codec is here a function of rows [n, d] to what they are decoded to; one of pages is given whole pages.

Ties. A codec stores float16 numbers, and a number between two of them goes to the nearer. Two computations of the same
row agree to about 1e-7, so that a row next to the middle may be stored either way. `held`, what the other side stored,
decides such rows and no others: of the codes of x and of x moved by `NOISE`, the nearest to `held` counts, number by number.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from .held import causal

Code = Callable[[np.ndarray], np.ndarray]

#: How far apart two float32 computations of one row may be, of its largest number.
NOISE = 1e-6


def at_once(n: int) -> int:
    """Every token is coded as it comes, before its own step looks."""
    return n


def blocks(size: int) -> Callable[[int], int]:
    """All but n mod size are coded."""
    return lambda n: n - n % size


def all_but(size: int) -> Callable[[int], int]:
    """All but the last `size` are coded."""
    return lambda n: max(0, n - size)


def resolved(code: Code, x: Float[np.ndarray, "n d"], held: Float[np.ndarray, "n d"] | None) -> Float[np.ndarray, "n d"]:
    """What x is decoded to; at a tie, whichever of both sides `held` is on."""
    if held is None or not x.size:
        return code(x)
    shift = NOISE * np.abs(x).max()
    moved = np.stack([code(y) for y in (x, x * (1 + NOISE), x * (1 - NOISE), x + shift, x - shift)])
    nearest = np.abs(moved - held).argmin(0)
    return np.take_along_axis(moved, nearest[None], axis=0)[0]


@dataclass
class Coded:
    """One side, keys or values: `rows` as they came, the first of them coded; `held` as the other side ends up holding them."""

    code: Code
    due: Callable[[int], int]
    page: int = 1
    sinks: int = 0
    rows: list[np.ndarray] = field(default_factory=list)
    coded: list[np.ndarray] = field(default_factory=list)
    held: Float[np.ndarray, "m d"] | None = None

    def add(self, x: Float[np.ndarray, "m d"]) -> None:
        self.rows += list(x)
        if self.due is at_once:
            self.flush()

    def flush(self) -> None:
        """Code what is due, page by page."""
        while len(self.coded) < self.due(len(self.rows)):
            page = slice(len(self.coded), len(self.coded) + self.page)
            held = None if self.held is None else self.held[page]
            self.coded += list(resolved(self.code, np.stack(self.rows[page]).astype(np.float64), held))

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
