"""Triton kernels of attention over lists of slots: each list shared out over programs by its length, then put together.

A *list* is what one (row, KV head) reads: a region of the pool, or slots in any order. `plan` cuts all lists into about `PROGRAMS`
items of equal size, so that a list of 32 times the slots gets 32 times the programs; every program makes the plan for itself, from
the lengths, which costs less than a launch. `attend` leaves an online softmax for each item, `combine` adds up a list's items.
Exponentials are to base 2. Nothing here needs JAX.
"""

import triton
import triton.language as tl

#: Below every score, and finite: exp2(-inf - LOW) is 0 and not NaN.
LOW = tl.constexpr(-1e30)
LN2, LOG2E = tl.constexpr(0.6931471805599453), tl.constexpr(1.4426950408889634)


@triton.jit
def plan(length, R: tl.constexpr, R2: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """(list, blocks, items, items up to its end), each [R2]; at most PROGRAMS + R items in all."""
    r = tl.arange(0, R2)
    blocks = tl.cdiv(tl.load(length + r, mask=r < R, other=0), BLOCK)
    each = tl.maximum(tl.cdiv(tl.sum(blocks, 0), PROGRAMS), 1)
    items = tl.cdiv(blocks, each)
    return r, blocks, items, tl.cumsum(items, 0)


@triton.jit
def pick(values, r, at):
    """values[at] of a vector over r."""
    return tl.sum(tl.where(r == at, values, 0), 0)


@triton.jit
def rows_of(q, at, G: tl.constexpr, D: tl.constexpr, D2: tl.constexpr, like: tl.constexpr):
    """The 16 query rows of a list, zeros where there are fewer; float32 if the pool has another dtype than they."""
    row, channel = tl.arange(0, 16)[:, None], tl.arange(0, D2)[None, :]
    rows = tl.load(q + (at.to(tl.int64) * G + row) * D + channel, mask=(row < G) & (channel < D), other=0)
    if rows.dtype != like:
        rows = rows.to(tl.float32)
    return rows


@triton.jit
def load(pool, slot, there, D: tl.constexpr, D2: tl.constexpr):
    """Rows [slots, D2] of the pool, zeros where not `there`."""
    channel = tl.arange(0, D2)[None, :]
    return tl.load(pool + slot.to(tl.int64)[:, None] * D + channel, mask=there[:, None] & (channel < D), other=0)


@triton.jit
def in_window(pos, slot, index, there, now, WINDOW: tl.constexpr, ORDERED: tl.constexpr):
    """Which slots a query at position `now` sees, all that are there for WINDOW = 0; ORDERED: at their places in the region."""
    seen = there
    if WINDOW > 0:
        at = index
        if not ORDERED:
            at = tl.load(pos + slot, mask=there, other=0).to(tl.int32)
        seen = there & (at <= now) & (at > now - WINDOW)
    return seen


@triton.jit
def weigh(scores, m):
    """(weights, how what was summed before fades, maximum) of an online softmax with a block of `scores` more."""
    new = tl.maximum(m, tl.max(scores, 1))
    weights = tl.exp2(scores - new[:, None])
    decay = tl.exp2(m - new)
    return weights, decay, new


@triton.jit
def keep(out, high, total, item, o, m, s, G: tl.constexpr, D: tl.constexpr, D2: tl.constexpr):
    """An item's online softmax in its place, for `combine`."""
    row, channel = tl.arange(0, 16), tl.arange(0, D2)[None, :]
    tl.store(high + item * G + row, m, mask=row < G)
    tl.store(total + item * G + row, s, mask=row < G)
    tl.store(out + (item * G + row)[:, None] * D + channel, o, mask=(row < G)[:, None] & (channel < D))


@triton.jit
def attend(
    q, k, v, pos, where, length, q_pos, bias, out, high, total,
    R: tl.constexpr, R2: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D2: tl.constexpr, LISTED: tl.constexpr,
    WINDOW: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
    BIASED: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """One item: out, high and total [items G (D)] of an online softmax over its blocks.

    where: starts of regions [R] for LISTED = 0, else slots [R LISTED].
    """
    item = tl.program_id(0)
    r, blocks, items, ends = plan(length, R, R2, BLOCK, PROGRAMS)
    if item >= tl.sum(items, 0):
        return
    at = tl.sum((ends <= item).to(tl.int32), 0)
    mine, of = item - pick(ends - items, r, at), pick(items, r, at)
    n, now = tl.load(length + at), tl.load(q_pos + at // H)
    first = tl.load(where + at) if LISTED == 0 else 0
    rows = rows_of(q, at, G, D, D2, k.dtype.element_ty)
    m = tl.full([16], LOW, tl.float32)
    s = tl.zeros([16], tl.float32)
    o = tl.zeros([16, D2], tl.float32)
    for block in range(mine * pick(blocks, r, at) // of, (mine + 1) * pick(blocks, r, at) // of):
        index = block * BLOCK + tl.arange(0, BLOCK)
        there = index < n
        slot = first + index
        if LISTED > 0:
            slot = tl.load(where + at.to(tl.int64) * LISTED + index, mask=there, other=0)
        seen = in_window(pos, slot, index, there, now, WINDOW, ORDERED)
        keys = load(k, slot, seen, D, D2).to(rows.dtype)
        scores = tl.dot(rows, tl.trans(keys), input_precision=PRECISION) * (SCALE * LOG2E)
        if BIASED:
            scores += tl.load(bias + slot, mask=seen, other=0.0)[None, :] * LOG2E
        scores = tl.where(seen[None, :], scores, float("-inf"))
        weights, decay, m = weigh(scores, m)
        values = load(v, slot, seen, D, D2).to(rows.dtype)
        o = o * decay[:, None] + tl.dot(weights.to(rows.dtype), values, input_precision=PRECISION)
        s = s * decay + tl.sum(weights, 1)
    keep(out, high, total, item, o, m, s, G, D, D2)


@triton.jit
def combine(
    part, high, total, length, out, lse,
    R: tl.constexpr, R2: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
    ITEMS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One query row of a list, WIDTH channels: out [R G D] and lse [R G] from the row's items; 0 and -inf of none."""
    at, row = tl.program_id(0), tl.program_id(1)
    channel = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    r, _, items, ends = plan(length, R, R2, BLOCK, PROGRAMS)
    count = pick(items, r, at)
    first = pick(ends, r, at) - count
    m, s = tl.full([1], LOW, tl.float32), tl.zeros([1], tl.float32)
    o = tl.zeros([WIDTH], tl.float32)
    for done in range(0, count, ITEMS):
        index = done + tl.arange(0, ITEMS)
        there, item = index < count, (first + index) * G + row
        highs = tl.load(high + item, mask=there, other=LOW)
        new = tl.maximum(m, tl.max(highs, 0))
        weights = tl.where(there, tl.exp2(highs - new), 0.0)
        rows = tl.load(part + item[:, None] * D + channel[None, :], mask=there[:, None] & (channel < D)[None, :], other=0)
        o = o * tl.exp2(m - new) + tl.sum(rows * weights[:, None], 0)
        s = s * tl.exp2(m - new) + tl.sum(weights * tl.load(total + item, mask=there, other=0), 0)
        m = new
    some = tl.where(s > 0, s, 1.0)
    place = at * G + row
    tl.store(out + place.to(tl.int64) * D + channel, o / some, mask=channel < D)
    tl.store(lse + place + tl.arange(0, 1), tl.where(s > 0, (m + tl.log2(some)) * LN2, float("-inf")))


@triton.jit
def score(
    q, k, pos, start, length, q_pos, bias, out,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D2: tl.constexpr, CAP: tl.constexpr,
    WINDOW: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr,
    ORDERED: tl.constexpr,
):  # fmt: skip
    """A block of a region's scores [R G CAP], -inf where the query does not see the slot; keys of those are not read."""
    at = tl.program_id(1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(start + at) + index
    there = index < tl.minimum(tl.load(length + at), CAP)
    seen = in_window(pos, slot, index, there, tl.load(q_pos + at // H), WINDOW, ORDERED)
    rows = rows_of(q, at, G, D, D2, k.dtype.element_ty)
    keys = load(k, slot, seen, D, D2).to(rows.dtype)
    scores = tl.dot(rows, tl.trans(keys), input_precision=PRECISION) * SCALE
    if BIASED:
        scores += tl.load(bias + slot, mask=seen, other=0.0)[None, :]
    row = tl.arange(0, 16)[:, None]
    place = (at.to(tl.int64) * G + row) * CAP + index[None, :]
    tl.store(out + place, tl.where(seen[None, :], scores, float("-inf")), mask=(row < G) & (index < CAP)[None, :])
