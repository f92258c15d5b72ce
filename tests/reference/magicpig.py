"""MagicPIG as a slow NumPy transcription: hashes, who meets whom, the chance of it, and the weighted attention."""

import math

import numpy as np

from tests.reference.softmax import softmax


def hashes(x: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """One number for each of [n, d] and each table of planes [tables, bits, d]."""
    found = np.zeros((len(x), len(normals)), int)
    for t, plane in enumerate(normals):
        for i, w in enumerate(plane):
            found[:, t] += (x @ w > 0) * 2**i
    return found


def met(q: np.ndarray, k: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Which of the keys [n, d] share a bucket with the query [d] in two tables or more."""
    return (hashes(q[None], normals) == hashes(k, normals)).sum(1) >= 2


def chance(q: np.ndarray, k: np.ndarray, bits: int, tables: int) -> np.ndarray:
    """u of every key: two or more of `tables` trials of success p^bits."""
    found = []
    for key in k:
        cosine = q @ key / max(np.linalg.norm(q) * np.linalg.norm(key), 1e-30)
        one = (1 - math.acos(min(1, max(-1, cosine))) / math.pi) ** bits
        found.append(1 - sum(math.comb(tables, i) * one**i * (1 - one) ** (tables - i) for i in (0, 1)))
    return np.array(found)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, between: np.ndarray, normals: np.ndarray) -> tuple[np.ndarray, int]:
    """Of one query [d] over all keys [n, d]: those `between` are sampled, the others read; and how many met."""
    centred = k - k[between].mean(0)
    z = centred @ q / math.sqrt(len(q))
    here = met(q, centred, normals) & between
    z = z - np.where(between, np.log(chance(q, centred, normals.shape[1], len(normals)) + 1e-4), 0)
    read = here | ~between
    return softmax(z[read]) @ v[read], int(here.sum())
