"""Mass selection on a CPU in C++: a histogram of the mass by leading bits, then of the bin that crosses."""

import jax

from kvjax.kernels import native


def refuses(scores, tau) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del scores, tau
    return native.missing()


@jax.jit
def select(scores, tau):
    """See `api.select_top_p`."""
    weights, lse = native.call("select_top_p", scores, tau, shapes=[scores.shape, scores.shape[:-1]])
    return weights, lse
