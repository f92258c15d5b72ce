"""ShadowKV as a slow NumPy transcription: what stays, what stands for the rest, and what a step reads."""

import numpy as np

from tests.reference.softmax import softmax


def landmarks(k: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean key of each chunk of one head's rotated keys [n, d], and the least cosine with it."""
    chunks = k[: len(k) // chunk * chunk].reshape(-1, chunk, k.shape[1])
    means = chunks.mean(1)
    cosines = [[x @ m / (np.linalg.norm(x) * np.linalg.norm(m)) for x in c] for c, m in zip(chunks, means, strict=True)]
    return means, np.array(cosines).min(1)


def parted(k: np.ndarray, chunk: int, local: int, outliers: int) -> tuple[list[int], list[int], np.ndarray]:
    """(outlier chunks, chunks with a landmark, the landmarks) of one head's prompt."""
    means, cosine = landmarks(k, chunk)
    many = max(len(k) // chunk - local, 0)
    worst = sorted(np.argsort(cosine[:many], kind="stable")[:outliers].tolist())
    rest = [c for c in range(many) if c not in worst]
    return worst, rest, means[rest]


def chosen(q: np.ndarray, marks: np.ndarray, many: int, scale: float) -> list[int]:
    """Landmarks of largest max_g softmax(scale · q_g · m): q [g, d]."""
    u = softmax(scale * q @ marks.T).max(0)
    return sorted(np.argsort(-u, kind="stable")[:many].tolist())


def low_rank(k_raw: np.ndarray, rank: int) -> np.ndarray:
    """Un-rotated keys [h, n, d] of all heads side by side, cut to `rank` singular values."""
    h, n, d = k_raw.shape
    side = k_raw.transpose(1, 0, 2).reshape(n, h * d)
    u, s, vt = np.linalg.svd(side, full_matrices=False)
    return ((u[:, :rank] * s[:rank]) @ vt[:rank]).reshape(n, h, d).transpose(1, 0, 2)
