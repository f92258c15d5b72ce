"""Quadratic forms on a CPU in C++: 64 keys at a time, a lane each, so that nothing is summed across a register."""

import jax

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS


def refuses(k, a, b) -> str | None:
    """Why these operands are not for this implementation, or None."""
    if str(k.dtype) not in KINDS:
        return f"takes {', '.join(KINDS)}; got {k.dtype}"
    if not str(a.dtype) == str(b.dtype) == "float32":
        return f"takes matrices and vectors of float32; got {a.dtype} and {b.dtype}"
    return native.missing()


@jax.jit
def forms(k, a, b):
    """See `api.quadratic_forms`."""
    return native.call("quadratic_forms", k, a, b, shapes=(*a.shape[:3], k.shape[2]))
