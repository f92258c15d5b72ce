"""Weighted values on a CPU in C++: slots that some query row gives weight are listed piece by piece, and read once."""

import jax

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS, MOST_ROWS


def refuses(v, start, weights) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del start
    g, t = weights.shape[2:4]
    if g * t > MOST_ROWS:
        return f"takes up to {MOST_ROWS} query rows a KV head, got {g} heads of {t} queries"
    if v.shape[1] % 16 or str(v.dtype) not in KINDS:
        return f"takes rows of a multiple of 16 numbers in {', '.join(KINDS)}; got {v.shape[1]} in {v.dtype}"
    return native.missing()


@jax.jit
def weighted_sum(v, start, weights):
    """See `api.weighted_values`."""
    return native.call("weighted_values", v, start, weights, shapes=(*weights.shape[:-1], v.shape[1]))
