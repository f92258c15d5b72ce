"""Where the k largest are, on a CPU in C++: the threshold of `select_top`, then one pass."""

from functools import partial

import jax
import numpy as np

from kvjax.kernels import native


def refuses(rank, k, *, most) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del rank, k, most
    return native.missing()


@partial(jax.jit, static_argnames="most")
def listed(rank, k, *, most):
    """See `api.list_top`; rows [r, n]."""
    return native.call("list_top", rank, k, shapes=(rank.shape[0], most), dtype=np.int32)
