"""Window scores on a CPU in C++: a window's scores with all keys are kept, so that each is made and exponentiated once."""

import jax

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS

#: Query rows of a KV head from which arranging its keys in lanes pays.
FEWEST_ROWS = 16


def refuses(q, k, *rest) -> str | None:
    """Why these operands are not for this implementation, or None."""
    if len(rest) > 3:
        return "takes no sliding windows"
    if q.shape[2] * q.shape[3] < FEWEST_ROWS:
        return f"takes {FEWEST_ROWS} query rows a KV head or more, got {q.shape[2]} x {q.shape[3]}"
    found = {str(q.dtype), str(k.dtype)}
    if not found <= set(KINDS):
        return f"takes {', '.join(KINDS)}; got {', '.join(sorted(found))}"
    return native.missing()


@jax.jit
def scores(q, k, pos, valid, length):
    """See `api.window_scores`."""
    return native.call("window_scores", q, k, pos, valid, length, shapes=(*q.shape[:3], k.shape[2]))
