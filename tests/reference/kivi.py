"""KIVI (arXiv 2402.02750): keys coded along tokens in blocks, values coded along channels one by one, the newest exact.

Keys are rotated at their true positions before they are coded. One KV head and its query heads. Where sources are silent:

- A step's output is computed before anything it pushes out is coded (as released), so one more key and value is exact then.
- Steps and minima are stored in 16 bits and rounded before the division (see `affine`), as released; all else is float64.
- Several tokens at once attend to codes, to the exact rows and causally to each other; then floor((exact + m) / R) blocks of
  keys are coded. So a prompt fed in pieces sees coded rows of its earlier pieces, a prompt fed whole sees exact ones only.
- Words: keys packed along tokens, block by block, values along channels. Where R or d does not fill words the last is padded.
- The constructor's group is 128, the published runs use 32: 32 here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from . import affine
from .coded import resolved
from .held import causal


def counts(n: int, residual: int) -> tuple[int, int, int, int]:
    """(keys coded, keys exact, values coded, values exact) after n tokens, however they came: n mod R and min(n, R) exact."""
    keys, values = n % residual, min(n, residual)
    return n - keys, keys, n - values, values


def kivi_nbytes(
    n: int,
    d: int,
    bits_k: int,
    bits_v: int | None = None,
    *,
    group_k: int = 32,
    group_v: int = 32,
    residual: int = 128,
    element: int = 2,
    meta: int = 2,
) -> int:
    """Bytes of one KV head after n tokens: words, a step and a minimum a group, and the exact rows."""
    coded_k, exact_k, coded_v, exact_v = counts(n, residual)
    blocks = coded_k // residual
    keys = blocks * d * (4 * affine.words(residual, bits_k) + 2 * meta * (residual // group_k))
    values = coded_v * (4 * affine.words(d, bits_k if bits_v is None else bits_v) + 2 * meta * (d // group_v))
    return keys + values + (exact_k + exact_v) * d * element


def read(
    code: Callable[[np.ndarray], affine.Block], x: Float[np.ndarray, "m d"], held: Float[np.ndarray, "n d"] | None,
    before: list[np.ndarray],
) -> Float[np.ndarray, "m d"]:  # fmt: skip
    """What is read of the next rows once they are coded."""
    first = sum(map(len, before))
    return resolved(lambda y: affine.dequantise(code(y)), x, None if held is None else held[first : first + len(x)])


@dataclass
class Kivi:
    """The cache of one KV head, d channels; R = `residual` is a multiple of the keys' group, d of the values'."""

    d: int
    bits_k: int = 2
    bits_v: int = 2
    group_k: int = 32
    group_v: int = 32
    residual: int = 128
    store: type[np.floating] = np.float16
    coded_k: list[affine.Block] = field(default_factory=list)
    coded_v: list[affine.Block] = field(default_factory=list)
    #: What the other side holds in the end, which decides ties of float16 (`coded`), and what is read of the coded rows.
    held_k: Float[np.ndarray, "n d"] | None = None
    held_v: Float[np.ndarray, "n d"] | None = None
    read_k: list[np.ndarray] = field(default_factory=list)
    read_v: list[np.ndarray] = field(default_factory=list)
    exact_k: Float[np.ndarray, "n d"] = field(init=False)
    exact_v: Float[np.ndarray, "m d"] = field(init=False)

    def __post_init__(self) -> None:
        self.exact_k, self.exact_v = np.zeros((0, self.d)), np.zeros((0, self.d))

    def keys(self) -> Float[np.ndarray, "n d"]:
        """What attention sees: codes first, exact rows after them."""
        return np.vstack([*self.read_k, self.exact_k])

    def values(self) -> Float[np.ndarray, "n d"]:
        return np.vstack([*self.read_v, self.exact_v])

    def counts(self) -> tuple[int, int, int, int]:
        """(keys coded, keys exact, values coded, values exact)."""
        keys, values = (sum(len(b.codes) for b in blocks) for blocks in (self.coded_k, self.coded_v))
        return keys, len(self.exact_k), values, len(self.exact_v)

    def extend(
        self, q: Float[np.ndarray, "g m d"], k: Float[np.ndarray, "m d"], v: Float[np.ndarray, "m d"]
    ) -> tuple[Float[np.ndarray, "g m d"], Int[np.ndarray, "n"]]:
        """(output, positions held) of m tokens at once: the prompt, or one step with m = 1. Append, attend, then code."""
        self.exact_k, self.exact_v = np.vstack([self.exact_k, k]), np.vstack([self.exact_v, v])
        out = causal(q, self.keys(), self.values())
        self.code_keys()
        self.code_values()
        return out, np.arange(len(self.keys()))

    def step(
        self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, " d"], v: Float[np.ndarray, " d"]
    ) -> tuple[Float[np.ndarray, "g d"], Int[np.ndarray, "n"]]:
        """(output, positions held) of one token."""
        out, positions = self.extend(q[:, None], k[None], v[None])
        return out[:, 0], positions

    def code_keys(self) -> None:
        """All R exact keys at once as soon as there are R: the window empties."""
        while len(self.exact_k) >= self.residual:
            block, self.exact_k = self.exact_k[: self.residual], self.exact_k[self.residual :]
            code = partial(affine.quantise, bits=self.bits_k, group=self.group_k, axis=0, store=self.store)
            self.read_k += [read(code, block, self.held_k, self.read_k)]
            self.coded_k.append(code(block))

    def code_values(self) -> None:
        """Every value but the last R, each as soon as it leaves them: the window slides."""
        while len(self.exact_v) > self.residual:
            row, self.exact_v = self.exact_v[:1], self.exact_v[1:]
            code = partial(affine.quantise, bits=self.bits_v, group=self.group_v, axis=1, store=self.store)
            self.read_v += [read(code, row, self.held_v, self.read_v)]
            self.coded_v.append(code(row))
