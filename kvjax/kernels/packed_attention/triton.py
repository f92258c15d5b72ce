"""Packed attention on a GPU by Triton: flash decoding over codes, which become numbers in registers and nowhere else.

Queries of 16 bits are multiplied with numbers rounded to their dtype, as those of a 16-bit cache are; float32 ones with float32.
"""

import dataclasses
import math
from functools import partial

import jax
import jax_triton as jt
import triton

from kvjax.kernels.ragged_attention.triton import combined, positions, sharing

from . import restored
from .packed import Packed

KINDS = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling.

    Attributes:
        programs: items that all regions together are cut into.
        block: slots of a step, restored in registers; as many as the codes of the widest word.
        stages, warps: of Triton's pipeline, and warps a program.
        items, width: of `combine`, items added up in a step and channels a program.
    """

    programs: int = 256
    block: int = 32
    stages: int = 2
    warps: int = 8
    items: int = 64
    width: int = 32


def refuses(q, k: Packed, v: Packed, *rest, **static) -> str | None:
    """Why these operands are not for this implementation, or None."""
    g, t, d = q.shape[2:]
    if t != 1:
        return f"takes one query a row, got {t}"
    if g > 16 or not 16 <= d <= 256:
        return f"takes up to 16 query heads a KV head, of dimension 16 to 256; got {g} of {d}"
    if d > 128 and str(q.dtype) == "float32":
        return f"takes float32 queries up to dimension 128 (registers), got {d}"
    if str(q.dtype) not in KINDS or str(k.tail.dtype) not in KINDS or str(v.tail.dtype) not in KINDS:
        return f"takes {', '.join(KINDS)}; got q {q.dtype}, exact rows {k.tail.dtype} and {v.tail.dtype}"
    return _refuses_codes(k, d) or _refuses_codes(v, d)


def _refuses_codes(side: Packed, d: int) -> str | None:
    if side.bits not in (1, 2, 4, 8):
        return f"takes codes of 1, 2, 4 and 8 bits, got {side.bits}"
    if str(side.scale.dtype) not in KINDS or side.low.dtype != side.scale.dtype:
        return f"takes steps and minima in {', '.join(KINDS)}; got {side.scale.dtype} and {side.low.dtype}"
    each = 32 // side.bits
    if side.group % each or (side.page == 1 and d % side.group):
        what = "pages of whole words, slots" if side.page > 1 else "groups of whole words, channels"
        return f"takes {what} in multiples of {each} for {side.bits} bits; got {side.group}"
    return None


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k: Packed, v: Packed, pos, start, length, q_pos, bias=None, *, window: int | None, config: Config = Config()):
    """See `api.packed_attention`."""
    h, d = q.shape[1], q.shape[-1]
    ordered, pos = positions(pos, start)
    parts, shared = sharing(q, config.block, config)
    how = dict(H=h, D2=triton.next_power_of_2(d), WINDOW=window or 0, SCALE=1 / math.sqrt(d), BIASED=bias is not None)
    how |= dict(PRECISION="tf32x3" if str(q.dtype) == "float32" else "tf32", ORDERED=ordered)
    how |= dict(K_BITS=k.bits, K_PAGE=k.page, K_GROUP=k.group, K_ROWS=k.tail.shape[2], K_SINKS=k.sinks)
    how |= dict(V_BITS=v.bits, V_GROUP=v.group, V_ROWS=v.tail.shape[2], V_SINKS=v.sinks)
    operands = *_operands(k), *_operands(v), pos, start, length, q_pos, start if bias is None else bias
    found = jt.triton_call(
        q, *operands, kernel=restored.attend, grid=parts[0].shape[:1], num_stages=config.stages, num_warps=config.warps,
        out_shape=parts, **how, **shared,
    )  # fmt: skip
    return combined(found, q, length, shared, config)


def _operands(side: Packed) -> tuple:
    """What the kernel reads of a side; where there are no exact rows, an operand that it does not read."""
    tail = side.tail if side.tail.size else side.scale
    return side.words, side.scale, side.low, tail, side.coded
