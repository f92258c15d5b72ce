"""QJL: signs of random projections and a norm; the largest channels of a group of tokens apart.

k^ = sqrt(pi/2) / m |k| S' sign(S k), so that q.k^ = sqrt(pi/2) / m |k| <S q, sign(S k)>.

Source: QJL, arXiv 2406.03482.
"""

import numpy as np
from jaxtyping import Float


def orthogonal_rows(seed: int, m: int, d: int) -> Float[np.ndarray, "m d"]:
    """Gaussian rows, each lot of d made orthogonal by Gram and Schmidt, and sqrt(d) long."""
    s = np.random.Generator(np.random.PCG64(seed)).standard_normal((m, d))
    for lot in range(0, m, d):
        for i in range(lot, min(lot + d, m)):
            for _ in range(2):
                s[i] -= s[lot:i].T @ (s[lot:i] @ s[i])
            s[i] /= np.linalg.norm(s[i])
    return np.sqrt(d) * s


def sketched(x: Float[np.ndarray, "n d"], s: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n d"]:
    """k^ of every row."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True).astype(np.float16)
    return np.sqrt(np.pi / 2) / len(s) * norm * (np.where(x @ s.T >= 0, 1.0, -1.0) @ s)


def keys(
    x: Float[np.ndarray, "n d"], s: Float[np.ndarray, "m d"], apart: Float[np.ndarray, "k d"], outliers: int
) -> Float[np.ndarray, "n d"]:
    """A group's rows: its `outliers` largest channels by one sketch, the others by the other."""
    out = np.zeros(x.shape[1], bool)
    out[np.argsort(-(x**2).sum(0), kind="stable")[:outliers]] = True
    inside, outside = sketched(np.where(out, 0, x), s), sketched(np.where(out, x, 0), apart)
    return np.where(out, outside, inside)
