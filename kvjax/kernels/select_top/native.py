"""The k largest on a CPU in C++: halvings that drop the keys they have decided."""

import jax
import numpy as np

from kvjax.kernels import native


def refuses(rank, k) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del rank, k
    return native.missing()


@jax.jit
def select(rank, k):
    """See `api.select_top`; rows [r, n]."""
    return native.call("select_top", rank, k, shapes=rank.shape, dtype=np.bool_)
