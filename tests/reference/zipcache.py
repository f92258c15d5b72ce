"""ZipCache (arXiv 2405.14256): two classes of tokens, keys coded channel by channel, values token by token after channel sizes.

Keys: x ≈ s_j code + m_j over the tokens of a class. Values: x_tj ≈ c_j (s_t code + m_t), c_j = sqrt(max_t |x_tj|), s and m over all
channels of all heads. p_i = Σ_k A_ki over the number of queries that see i. Open points: c_j = 0 counts as 1; the i-th tokens of
all heads make a row, whichever they are (as released).
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int

from . import affine


@dataclass
class Separable:
    """codes [t, w], step and low [t], size [w]."""

    codes: Int[np.ndarray, "t w"]
    step: Float[np.ndarray, " t"]
    low: Float[np.ndarray, " t"]
    size: Float[np.ndarray, " w"]

    def numbers(self) -> Float[np.ndarray, "t w"]:
        return (self.codes * self.step[:, None] + self.low[:, None]) * self.size


def separable(x: Float[np.ndarray, "t w"], bits: int, store: type[np.floating] = np.float64) -> Separable:
    """Rows of all heads' channels side by side."""
    top = np.abs(x).max(0)
    size = np.where(top > 0, np.sqrt(top), 1.0).astype(store).astype(x.dtype)
    block = affine.quantise(x / size, bits=bits, group=x.shape[1], axis=1, store=store)
    return Separable(block.codes, block.scale[:, 0], block.low[:, 0], size)


def by_channel(x: Float[np.ndarray, "t w"], bits: int, store: type[np.floating] = np.float64) -> affine.Block:
    """One group a channel over all tokens."""
    return affine.quantise(x, bits=bits, group=len(x), axis=0, store=store)


def saliency(a: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """Mean over the queries that see a key."""
    return a.sum(0) / np.arange(len(a), 0, -1)


def classes(p: Float[np.ndarray, " n"], share: float) -> np.ndarray:
    """Which tokens are salient: all but floor((1 - share) n) of largest p, the earlier of equal ones."""
    count = len(p) - int((1 - Fraction(str(share))) * len(p))
    mask = np.zeros(len(p), bool)
    mask[np.lexsort((np.arange(len(p)), -p))[:count]] = True
    return mask


def coded(k: Float[np.ndarray, "h t d"], v: Float[np.ndarray, "h t d"], bits: int, store: type[np.floating] = np.float16):
    """(keys, values) [h, t, d] of one class as they are read again."""
    h, t, d = k.shape
    if t == 0:
        return k, v
    keys = np.stack([affine.dequantise(by_channel(x, bits, store)) for x in k])
    rows = separable(np.moveaxis(v, 0, 1).reshape(t, h * d), bits, store).numbers()
    return keys, np.moveaxis(rows.reshape(t, h, d), 1, 0)
