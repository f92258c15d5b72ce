"""How much each layer's attention output changes when its cache is cut: K5 and K6, on the host in float64.

Axis letters: s data sets, l layers, e model width.
"""

import numpy as np
from jaxtyping import Float

#: The paper's stabiliser; its code uses 1e-5.
EPS = 1e-6


def relative_error(full: Float[np.ndarray, "*x e"], compressed: Float[np.ndarray, "*x e"], eps: float = EPS) -> float:
    """‖O_comp - O_full‖_F / (‖O_full‖_F + eps), the outputs after W_O. Source: CompressKV, arXiv 2508.02401, eq. 6."""
    full, compressed = full.astype(np.float64), compressed.astype(np.float64)
    return float(np.sqrt(((compressed - full) ** 2).sum()) / (np.sqrt((full**2).sum()) + eps))


def layer_scores(errors: Float[np.ndarray, "s l"]) -> Float[np.ndarray, " l"]:
    """ẽ: each data set's errors as shares of their sum, averaged over the data sets, again as shares; sums to 1.

    Data sets without a usable sample (errors all zero, or not finite) are left out; with none left the scores are uniform.

    Args:
        errors: e_d^(l), summed over the samples and decode steps of each data set.

    Source: CompressKV, arXiv 2508.02401, eq. 7 to 9.
    """
    errors = np.asarray(errors, np.float64)
    total = errors.sum(1)
    usable = np.isfinite(errors).all(1) & (total > 0)
    if not usable.any():
        return np.full(errors.shape[1], 1.0 / errors.shape[1])
    mean = (errors[usable] / total[usable, None]).mean(0)
    return mean / mean.sum()
