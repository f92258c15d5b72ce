"""ChunkKV (arXiv 2502.00299): whole runs of consecutive tokens stay or go, the same runs for every head.

Readings of what the sources leave open:
- A trailing partial chunk counts as a chunk and is averaged over its own tokens.
- `exact` takes chunks by descending score and their tokens in order, and stops at int(share n) tokens.
- A prompt shorter than one chunk falls back to the base: the top int(share n) of each head.
- Chunk scores tie to the lower chunk.
"""

import numpy as np
from jaxtyping import Float, Int

from .top_k import top_k


def chunk_scores(u: Float[np.ndarray, "h n"], size: int) -> Float[np.ndarray, "m"]:
    """Mean over the tokens of a chunk of e = sum over KV heads of u."""
    e = u.astype(np.float64).sum(axis=0)
    return np.array([e[i : i + size].mean() for i in range(0, len(e), size)])


def kept_chunks(scores: Float[np.ndarray, "m"], share: float) -> Int[np.ndarray, "c"]:
    """The top max(1, int(m share)) chunks, best first."""
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return np.array(best[: max(1, int(len(scores) * share))], int)


def chunkkv(u: Float[np.ndarray, "h n"], *, size: int = 20, share: float, exact: bool = False) -> list[Int[np.ndarray, "k"]]:
    """Kept positions of each head, ascending."""
    heads, n = u.shape
    if n < size:
        return [top_k(row, int(n * share)) for row in u]
    scores = chunk_scores(u, size)
    chosen = kept_chunks(scores, 1.0 if exact else share)
    tokens = np.concatenate([np.arange(i * size, min((i + 1) * size, n)) for i in chosen])
    if exact:
        tokens = tokens[: max(1, int(n * share))]
    return [np.sort(tokens)] * heads
