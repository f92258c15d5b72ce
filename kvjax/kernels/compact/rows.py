"""The Triton kernels that move rows: every region's loop in one launch, where a loop of XLA's asks the host after every turn."""

import triton
import triton.language as tl


@triton.jit
def slots_of(base, offsets, i, real, LISTED: tl.constexpr):
    """A region's slots: base + i, or, of a list LISTED long, base + offsets_i."""
    r = tl.program_id(0).to(tl.int64)
    first = tl.load(base + r).to(tl.int64)
    if LISTED == 0:
        return first + i
    return first + tl.load(offsets + r * LISTED + i, mask=real, other=0)


@triton.jit
def copy(source, at_base, at, to_base, to, count, out, AT: tl.constexpr, TO: tl.constexpr, D: tl.constexpr, D2: tl.constexpr,
         ROWS: tl.constexpr):  # fmt: skip
    """out[to_i] = source[at_i] for i < count of the program's region, ROWS at a time, in turns with the region's other programs."""
    n, d = tl.load(count + tl.program_id(0)), tl.arange(0, D2)[None, :]
    for first in range(tl.program_id(1) * ROWS, n, tl.num_programs(1) * ROWS):
        i = first + tl.arange(0, ROWS)
        here = (i < n)[:, None] & (d < D)
        x = tl.load(source + slots_of(at_base, at, i, i < n, AT)[:, None] * D + d, mask=here)
        tl.store(out + slots_of(to_base, to, i, i < n, TO)[:, None] * D + d, x.to(out.dtype.element_ty), mask=here)


@triton.jit
def within(at_base, at, to_base, to, count, pool, out, AT: tl.constexpr, TO: tl.constexpr, D: tl.constexpr, D2: tl.constexpr,
           ROWS: tl.constexpr):  # fmt: skip
    """As `between`, from the pool itself: `out`, its memory. Given twice, once to be read, XLA would copy it."""
    copy(out, at_base, at, to_base, to, count, out, AT, TO, D, D2, ROWS)


@triton.jit
def between(at_base, at, to_base, to, count, source, pool, out, AT: tl.constexpr, TO: tl.constexpr, D: tl.constexpr,
            D2: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """out[to_i] = source[at_i] for i < count, in every region; `out` is the memory of `pool`."""
    copy(source, at_base, at, to_base, to, count, out, AT, TO, D, D2, ROWS)
