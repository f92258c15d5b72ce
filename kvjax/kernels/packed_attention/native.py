"""Packed attention on a CPU in C++ (`kvjax/kernels/native`): codes become numbers in registers, and nowhere else.

Pieces and threads are those of ragged attention: a region's result does not depend on the others, nor on the number of threads.
"""

from functools import partial

import jax
import numpy as np

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS, biases

from .packed import Packed

#: Query rows of a region up to which decoding codes again for every few rows pays.
MOST_ROWS = 32
#: Slots of a piece: pages are parts of it.
PIECE = 256


def refuses(q, k: Packed, v: Packed, pos, *rest, **static) -> str | None:
    """Why these operands are not for this implementation, or None."""
    g, t, d = q.shape[2:]
    if g * t > MOST_ROWS:
        return f"takes up to {MOST_ROWS} query rows a KV head, got {g} heads of {t} queries"
    if d & (d - 1) or not 16 <= d <= 256:
        return f"takes head dimensions 16, 32, 64, 128 and 256, got {d}"
    if str(pos.dtype) not in ("uint16", "int32"):
        return "takes positions as uint16 or int32"
    if k.tail.dtype != v.tail.dtype or str(k.tail.dtype) not in KINDS or str(q.dtype) not in KINDS:
        return f"takes {', '.join(KINDS)}, exact keys and values alike; got q {q.dtype}, rows {k.tail.dtype} and {v.tail.dtype}"
    return _refuses_codes(k, d) or _refuses_codes(v, d) or native.missing()


def _refuses_codes(side: Packed, d: int) -> str | None:
    each = 32 // side.bits
    if side.bits not in (2, 4, 8):
        return f"takes codes of 2, 4 and 8 bits, got {side.bits}"
    if str(side.scale.dtype) not in KINDS or side.low.dtype != side.scale.dtype:
        return f"takes steps and minima in {', '.join(KINDS)}; got {side.scale.dtype} and {side.low.dtype}"
    if side.page > 1 and (PIECE % side.page or side.page % 4):
        return f"takes pages of 4, 8, ... {PIECE} slots, got {side.page}"
    if side.page == 1 and (d % side.group or side.group & (side.group - 1) or side.group % each):
        return f"takes groups of {each}, {2 * each}, ... channels of {side.bits} bits, got {side.group}"
    return None


@partial(jax.jit, static_argnames="window")
def attention(q, k: Packed, v: Packed, pos, start, length, q_pos, bias=None, *, window: int | None):
    """See `api.packed_attention`."""
    codes = k.words, k.scale, k.low, v.words, v.scale, v.low
    operands = *codes, k.tail, v.tail, pos, start, length, k.coded, v.coded, q_pos, biases(bias)
    sizes = dict(k_bits=k.bits, v_bits=v.bits, page=k.page, k_sinks=k.sinks, v_sinks=v.sinks, window=window or 0)
    out, lse = native.call(
        "packed_attention", q, *operands, shapes=[q.shape, q.shape[:-1]], **{name: np.int64(x) for name, x in sizes.items()}
    )
    return out.astype(q.dtype), lse
