"""Q-Filters (arXiv 2503.02812): keys against the one direction the queries of a head share.

Readings of what the sources leave open:
- Every query head has a filter, and a KV head the mean of its group's, as it is (as released). Queries are not centred.
- A filter points away from the queries: mean_q f . q < 0, so that a small f . k means a large expected attention.
"""

import numpy as np
from jaxtyping import Float


def q_filters(k: Float[np.ndarray, "h n d"], filters: Float[np.ndarray, "h d"]) -> Float[np.ndarray, "h n"]:
    """u = -f_g . k. Rotated keys."""
    return -np.einsum("hd,hnd->hn", filters.astype(np.float64), k.astype(np.float64))


def calibrate(q: Float[np.ndarray, "h g n d"]) -> Float[np.ndarray, "h d"]:
    """The mean over each group of the leading right singular vectors of its heads' queries, each turned away from them."""
    h, g, n, d = q.shape
    out = np.zeros((h, d))
    for at in np.ndindex(h, g):
        rows = q[at].astype(np.float64)
        f = np.linalg.svd(rows, full_matrices=False)[2][0]
        out[at[0]] += (-f if (rows @ f).mean() > 0 else f) / g
    return out
