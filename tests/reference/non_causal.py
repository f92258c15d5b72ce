"""Non-causal attention inside chunks: what each key receives from all queries of its chunk, times its value's norm.

Readings of what the sources leave open:
- Logits are plain dot products, not divided by sqrt(d). z-scores run over all heads and tokens of a layer, std of count - 1.
- A short last chunk is attended to as it is. The recorded form fills it up (`filled`): padded keys and rows have logit 0, so
  every column gains about 1 / chunk from each padded row.
"""

import numpy as np
from jaxtyping import Float

from .heads import group_mean
from .pooling import avg_pool
from .softmax import softmax


def received(
    q: Float[np.ndarray, "h g n d"], k: Float[np.ndarray, "h n d"], *, chunk: int = 256, filled: bool = False
) -> np.ndarray:
    """a [h, g, n]: column sums of softmax(q k) inside each chunk."""
    h, g, n, _ = q.shape
    out = np.zeros((h, g, n))
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        z = np.einsum("hgqd,hkd->hgqk", q[:, :, part].astype(np.float64), k[:, part].astype(np.float64))
        missing = chunk - z.shape[-1] if filled else 0
        z = np.pad(z, [(0, 0), (0, 0), (0, missing), (0, missing)])
        out[..., part] = softmax(z).sum(axis=2)[..., : z.shape[-1] - missing]
    return out


def z_score(x: np.ndarray) -> np.ndarray:
    """(x - mean) / std over everything."""
    return (x - x.mean()) / x.std(ddof=1)


def non_causal(
    q: Float[np.ndarray, "h g n d"],
    k: Float[np.ndarray, "h n d"],
    v: Float[np.ndarray, "h n d"],
    *,
    chunk: int = 256,
    size: int = 3,
    filled: bool = False,
) -> Float[np.ndarray, "h n"]:
    """u = z(pool(group mean of a, times ||v||_2)). Rotated queries and keys."""
    seen = group_mean(received(q, k, chunk=chunk, filled=filled)) * np.linalg.norm(v.astype(np.float64), axis=-1)
    return z_score(avg_pool(seen, size))
