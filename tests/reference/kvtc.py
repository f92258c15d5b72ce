"""KVTC: principal components of all heads of a token, coded in runs; the runs by dynamic programming.

y = Vᵀ(x - μ); a run of b bits: step = (max - min) / (2^b - 1), shift = min, code = round((y - shift) / step), both numbers float16.
A run of eight bits: e4m3 numbers of (y - middle) / (half the range / 448). x^ = V y^ + μ.

Source: KVTC, arXiv 2511.01815, section 3.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from jaxtyping import Float, UInt8

from .held import causal
from .rotary import rotate

Runs = list[tuple[int, int]]


def codes(y: Float[np.ndarray, "s"], bits: int) -> tuple[np.ndarray, np.float16, np.float16]:
    """(codes, step, shift) of one run of one token; codes of eight bits as their bytes."""
    y = y.astype(np.float32)
    top = np.float32(896 if bits == 8 else (1 << bits) - 1)
    step = np.float16((y.max() - y.min()) / top)
    shift = np.float16((y.max() + y.min()) / np.float32(2)) if bits == 8 else np.float16(y.min())
    level = (y - np.float32(shift)) / np.float32(step if step > 0 else 1)
    if bits == 8:
        return np.clip(level, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8), step, shift
    return np.clip(np.round(level), 0, (1 << bits) - 1).astype(np.uint8), step, shift


def decoded(code: np.ndarray, step: np.float16, shift: np.float16, bits: int) -> Float[np.ndarray, "s"]:
    level = code.view(ml_dtypes.float8_e4m3fn) if bits == 8 else code
    return np.float64(shift) + np.float64(step) * level.astype(np.float64)


def row(y: Float[np.ndarray, "r"], runs: Runs, width: int) -> UInt8[np.ndarray, "w"]:
    """A token's bytes: steps and shifts of the stored runs, then codes of 8, 4 and 2 bits, the lowest bits first."""
    stored = [(codes(part, bits), bits) for part, (_, bits) in zip(_parts(y, runs), runs, strict=True) if bits]
    meta = b"".join(np.array(found[1:], "<f2").tobytes() for found, _ in stored)
    stream = []
    for bits in (8, 4, 2):
        for (code, *_), of in stored:
            if of == bits:
                stream += [(int(c) >> i) & 1 for c in code for i in range(bits)]
    packed = np.packbits(np.array(stream, np.uint8), bitorder="little").tobytes()
    return np.frombuffer((meta + packed).ljust(width, b"\0"), np.uint8)


def quantised(y: Float[np.ndarray, "r"], runs: Runs) -> Float[np.ndarray, "r"]:
    """y^ of one token; 0 where nothing is stored."""
    found = [decoded(*codes(x, bits), bits) if bits else np.zeros(n) for x, (n, bits) in zip(_parts(y, runs), runs, strict=True)]
    return np.concatenate(found)


def _parts(y: np.ndarray, runs: Runs) -> list[np.ndarray]:
    return np.split(y[: sum(n for n, _ in runs)], np.cumsum([n for n, _ in runs])[:-1])


@dataclass
class Side:
    """Keys or values of one layer, all heads of a token together: [h, d] each."""

    basis: Float[np.ndarray, "p r"]
    mean: Float[np.ndarray, " p"]
    runs: Runs

    def coded(self, x: Float[np.ndarray, "h d"]) -> Float[np.ndarray, "h d"]:
        rank = sum(n for n, _ in self.runs)
        y = (x.reshape(-1).astype(np.float64) - self.mean) @ self.basis[:, :rank]
        return (self.basis[:, :rank] @ quantised(y, self.runs) + self.mean).reshape(x.shape)


@dataclass
class LayerCache:
    """One layer's tokens: coded once, when they leave the window; the first few are exact.

    `settle` is given what each is decoded to, with 0 for keys and 1 for values and its position, and says what goes on from there.
    """

    keys: Side
    values: Side
    recent: int
    sinks: int
    omega: np.ndarray
    settle: Callable[[np.ndarray, int, int], np.ndarray] = lambda x, kind, i: x
    k: list[np.ndarray] = field(default_factory=list)
    v: list[np.ndarray] = field(default_factory=list)
    done: int = 0

    def add(self, k: Float[np.ndarray, "h d"], v: Float[np.ndarray, "h d"]) -> None:
        self.k.append(np.asarray(k, np.float64))
        self.v.append(np.asarray(v, np.float64))

    def flush(self) -> None:
        due = max(len(self.k) - self.recent, self.done)
        for i in range(max(self.done, self.sinks), due):
            self.k[i] = self.settle(self.keys.coded(self.k[i]), 0, i)
            self.v[i] = self.settle(self.values.coded(self.v[i]), 1, i)
        self.done = due

    def step(self, q: Float[np.ndarray, "h g d"], k: np.ndarray, v: np.ndarray) -> Float[np.ndarray, "h g d"]:
        """Append, attend to keys turned to their positions, then code what has left the window."""
        self.add(k, v)
        heads = [
            causal(q[h][:, None], rotate(np.stack([x[h] for x in self.k]), np.arange(len(self.k)), self.omega),
                   np.stack([x[h] for x in self.v]))[:, 0]
            for h in range(len(q))
        ]  # fmt: skip
        self.flush()
        return np.stack(heads)


def best_runs(loss: np.ndarray, budget: int, sizes: tuple[int, ...], bits: tuple[int, ...], overhead: int) -> float:
    """The least loss of any sequence of runs within the budget, by trying all of them."""

    def least(i: int, left: int) -> float:
        if i == loss.shape[-1]:
            return 0.0
        found = [np.inf]
        for t, s in itertools.product(range(len(bits)), range(len(sizes))):
            cost = sizes[s] * bits[t] + overhead if bits[t] else 0
            if i + sizes[s] <= loss.shape[-1] and cost <= left:
                found.append(loss[t, s, i] + least(i + sizes[s], left - cost))
        return min(found)

    return least(0, budget)


def water_filled(variances: Float[np.ndarray, " r"], total: int) -> list[int]:
    """Bits of every component that minimise Σ λ_i 4^-b_i, one at a time to the greatest λ_i 4^-b_i; ties to the first."""
    bits = np.zeros(len(variances), int)
    for _ in range(total):
        bits[np.argmax(variances * 4.0**-bits)] += 1
    return bits.tolist()
