"""Rows times a weight matrix on a CPU in C++.

Of a decode step's few rows every weight is read once, in the dtype it has in memory; of a prompt's, blocks meet panels of weights.
"""

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS

#: Beyond these XLA's product of float16, or of bfloat16 without an instruction for it, is the faster one.
MOST_ROWS = 64
#: Up to these a row's result is, to the bit, what it is alone.
FEW_ROWS = 8
#: Numbers in the widest register.
REGISTER = 16


def refuses(x, weight, *, dtype) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del dtype
    if x.shape[1] % REGISTER or not x.shape[1] or not weight.shape[0]:
        return f"takes rows of a multiple of {REGISTER} numbers and at least one output; got {weight.shape}"
    if not {str(x.dtype), str(weight.dtype)} <= set(KINDS):
        return f"takes {', '.join(KINDS)}; got {x.dtype} and {weight.dtype}"
    reason = native.missing()
    if reason is None and (not x.shape[0] or x.shape[0] > MOST_ROWS and not in_blocks(x, weight)):
        return f"takes 1 to {MOST_ROWS} rows of {x.dtype} and weights of {weight.dtype}, got {x.shape[0]}"
    return reason


def in_blocks(x, weight) -> bool:
    """Whether a prompt's rows are multiplied here: float32, or bfloat16 in pairs where the processor has them."""
    if x.shape[1] % REGISTER:
        return False
    kinds = {str(x.dtype), str(weight.dtype)}
    return kinds == {"float32"} or kinds == {"bfloat16"} and not x.shape[1] % (2 * REGISTER) and native.has_pairs()


def multiply(x, weight, *, dtype):
    """See `api.linear`."""
    return native.call("linear", x, weight, shapes=(x.shape[0], weight.shape[0])).astype(dtype)
