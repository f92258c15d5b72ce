"""Q-Filters (arXiv 2503.02812): keys against the one direction the queries of a head share.

Readings of what the sources leave open:
- Queries of a group are put together before the decomposition; they are not centred.
- A filter points away from the queries: mean_q f . q < 0, so that a small f . k means a large expected attention.
"""

import numpy as np
from jaxtyping import Float


def q_filters(k: Float[np.ndarray, "h n d"], filters: Float[np.ndarray, "h d"]) -> Float[np.ndarray, "h n"]:
    """u = -f_g . k. Rotated keys."""
    return -np.einsum("hd,hnd->hn", filters.astype(np.float64), k.astype(np.float64))


def calibrate(q: Float[np.ndarray, "h g n d"]) -> Float[np.ndarray, "h d"]:
    """The leading right singular vector of each group's queries, turned away from them."""
    out = []
    for group in q.astype(np.float64):
        rows = group.reshape(-1, group.shape[-1])
        f = np.linalg.svd(rows, full_matrices=False)[2][0]
        out.append(-f if (rows @ f).mean() > 0 else f)
    return np.array(out)
