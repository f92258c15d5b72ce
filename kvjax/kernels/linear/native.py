"""Rows of a decode step times a weight matrix on a CPU in C++: every weight is read once, in the dtype it has in memory."""

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS

#: Beyond these XLA's product is the faster one.
MOST_ROWS = 64
#: Up to these a row's result is, to the bit, what it is alone.
FEW_ROWS = 8
#: Numbers in the widest register.
REGISTER = 16


def refuses(x, weight, *, dtype) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del dtype
    if not 1 <= x.shape[0] <= MOST_ROWS:
        return f"takes 1 to {MOST_ROWS} rows, got {x.shape[0]}"
    if x.shape[1] % REGISTER or not x.shape[1] or not weight.shape[0]:
        return f"takes rows of a multiple of {REGISTER} numbers and at least one output; got {weight.shape}"
    if not {str(x.dtype), str(weight.dtype)} <= set(KINDS):
        return f"takes {', '.join(KINDS)}; got {x.dtype} and {weight.dtype}"
    return native.missing()


def multiply(x, weight, *, dtype):
    """See `api.linear`."""
    return native.call("linear", x, weight, shapes=(x.shape[0], weight.shape[0])).astype(dtype)
