"""A SwiGLU's first half on a CPU in C++, for a prompt's rows."""

from kvjax.kernels import native
from kvjax.kernels.linear.native import MOST_ROWS, in_blocks


def refuses(x, gate, up) -> str | None:
    """Why these operands are not for this implementation, or None."""
    if x.shape[0] <= MOST_ROWS or not gate.shape[0]:
        return f"takes more than {MOST_ROWS} rows and at least one output; got {x.shape[0]} and {gate.shape[0]}"
    reason = native.missing()
    if reason is None and not (in_blocks(x, gate) and in_blocks(x, up)):
        return f"takes float32, or bfloat16 where there are instructions for it; got {x.dtype}, {gate.dtype} and {up.dtype}"
    return reason


def multiply(x, gate, up):
    """See `api.gated_linear`."""
    return native.call("gated_linear", x, gate, up, shapes=(x.shape[0], gate.shape[0])).astype(x.dtype)
