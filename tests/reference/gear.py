"""GEAR: outliers out, groups coded, the error as a product of two thin matrices.

X^ = D + A B' + S. S: the least and greatest numbers of a row, coded as the row's mean. A B' = Q Q' E of E = X - D - S by power
iteration.

Source: GEAR, arXiv 2403.05527.
"""

import numpy as np
from jaxtyping import Float

from . import affine


def outliers(x: Float[np.ndarray, "n d"], each: int, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(x with its ends along `axis` replaced by the mean, where they are)."""
    lines = np.moveaxis(x, axis, -1)
    where = np.zeros(lines.shape, bool)
    for row, at in zip(where, lines, strict=True):
        row[np.argsort(at, kind="stable")[:each]] = row[np.argsort(-at, kind="stable")[:each]] = True
    filled = np.where(where, lines.mean(-1, keepdims=True), lines)
    return np.moveaxis(filled, -1, axis), np.moveaxis(where, -1, axis)


def power(e: Float[np.ndarray, "n d"], p: Float[np.ndarray, "d r"], loops: int) -> tuple[np.ndarray, np.ndarray]:
    """(A, B)."""
    for i in range(loops):
        if i == loops - 1:
            p = np.linalg.qr(p)[0]
        q = e @ p
        if i == loops - 1:
            q = np.linalg.qr(q)[0]
        p = e.T @ q
    return q, p


def block(
    x: Float[np.ndarray, "n d"], *, bits: int, group: int, axis: int, each: int, start: Float[np.ndarray, "d r"] | None,
    loops: int = 3,
) -> Float[np.ndarray, "n d"]:  # fmt: skip
    """X^ of a block; groups and outliers along `axis`: 0 tokens, 1 channels."""
    filled, out = outliers(x, each, axis) if each else (x, np.zeros(x.shape, bool))
    coded = affine.dequantise(affine.quantise(filled, bits=bits, group=group, axis=axis, store=np.float16))
    coded = np.where(out, x.astype(np.float16), coded)
    if start is None:
        return coded
    a, b = power(x - coded, start, loops)
    return coded + a.astype(np.float16).astype(np.float64) @ b.astype(np.float16).astype(np.float64).T
