"""Scores from codes on a CPU in C++: tables first, then one load a code for four query rows, four groups of channels at a time."""

from functools import partial

import jax
import numpy as np

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import MOST_ROWS


def refuses(q, codes, codebook, pos, *rest, **static) -> str | None:
    """Why these operands are not for this implementation, or None."""
    g, t = q.shape[2:4]
    if g * t > MOST_ROWS:
        return f"takes up to {MOST_ROWS} query rows a KV head, got {g} heads of {t} queries"
    if codebook.shape[-1] > 256:
        return f"takes groups of up to 256 channels, got {codebook.shape[-1]}"
    floats = ("float32", "bfloat16", "float16")
    for x, kinds in ((q, floats), (codes, ("uint8", "uint16")), (codebook, floats), (pos, ("uint16", "int32"))):
        if str(x.dtype) not in kinds:
            return f"takes {', '.join(kinds)}; got {x.dtype}"
    return native.missing()


@partial(jax.jit, static_argnames=("cap", "window"))
def scores(q, codes, codebook, pos, start, length, q_pos, *, cap: int, window: int | None):
    """See `api.codebook_scores`."""
    shape, window = (*q.shape[:-1], cap), np.int64(window or 0)
    return native.call("codebook_scores", q, codes, codebook, pos, start, length, q_pos, shapes=shape, window=window)
