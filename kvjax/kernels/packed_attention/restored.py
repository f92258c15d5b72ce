"""The Triton kernel of attention from packed codes: a tile of codes becomes numbers in registers, and is multiplied as dense ones.

A word is read once and unpacked by shifts; steps and minima are read once a word. Items, their online softmax and its end are those
of ragged attention.
"""

import triton
import triton.language as tl

from kvjax.kernels.ragged_attention.split import LOG2E, LOW, in_window, keep, pick, plan, rows_of, weigh


@triton.jit
def restore(words, scale, low, word, group, mask, AXIS: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr, D2: tl.constexpr):
    """Numbers [BLOCK, D2] of the words at `word`, whose codes go along AXIS (1 tokens, 2 channels), steps and minima at `group`."""
    code = tl.load(words + word, mask=mask, other=0)
    step = tl.load(scale + group, mask=mask, other=0).to(tl.float32)
    least = tl.load(low + group, mask=mask, other=0).to(tl.float32)
    shift = tl.expand_dims(tl.expand_dims((BITS * tl.arange(0, 32 // BITS)).to(tl.uint32), 0), 3 - AXIS)
    code = (tl.expand_dims(code, AXIS) >> shift) & ((1 << BITS) - 1)
    numbers = tl.expand_dims(step, AXIS) * code.to(tl.float32) + tl.expand_dims(least, AXIS)
    return tl.reshape(numbers, [BLOCK, D2])


@triton.jit
def by_page(
    words, scale, low, first, start, n,
    D: tl.constexpr, D2: tl.constexpr, BITS: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Numbers [BLOCK, D2] of the slots from index `first` of a region on, codes along tokens; `n` slots in the region."""
    EACH: tl.constexpr = 32 // BITS
    index, channel = first + EACH * tl.arange(0, BLOCK // EACH), tl.arange(0, D2)[None, :]
    mask = (index < n)[:, None] & (channel < D)
    slot = (start + index).to(tl.int64)[:, None]
    return restore(words, scale, low, slot // EACH * D + channel, slot // PAGE * D + channel, mask, 1, BITS, BLOCK, D2)


@triton.jit
def by_slot(
    words, scale, low, first, start, n,
    D: tl.constexpr, D2: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same where codes go along channels, GROUP of them to a step."""
    EACH: tl.constexpr = 32 // BITS
    index, at = first + tl.arange(0, BLOCK), tl.arange(0, D2 // EACH)[None, :]
    mask = (index < n)[:, None] & (at * EACH < D)
    slot = (start + index).to(tl.int64)[:, None]
    group = slot * (D // GROUP) + at * EACH // GROUP
    return restore(words, scale, low, slot * (D // EACH) + at, group, mask, 2, BITS, BLOCK, D2)


@triton.jit
def exact(
    numbers, tail, coded, at, index, there,
    D: tl.constexpr, D2: tl.constexpr, ROWS: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """`numbers` with the exact rows where there are, zeros where no slot is."""
    channel = tl.arange(0, D2)[None, :]
    if ROWS > SINKS:
        own = there & ((index < SINKS) | (index >= coded))
        row = tl.where(index < SINKS, index, SINKS + index % (ROWS - SINKS))
        place = (at.to(tl.int64) * ROWS + row)[:, None] * D + channel
        rows = tl.load(tail + place, mask=own[:, None] & (channel < D), other=0).to(tl.float32)
        numbers = tl.where(own[:, None], rows, numbers)
    return tl.where(there[:, None], numbers, 0.0)


@triton.jit
def attend(
    q, k_words, k_scale, k_low, k_tail, k_coded, v_words, v_scale, v_low, v_tail, v_coded,
    pos, start, length, q_pos, bias, out, high, total,
    R: tl.constexpr, R2: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, D2: tl.constexpr,
    K_BITS: tl.constexpr, K_PAGE: tl.constexpr, K_GROUP: tl.constexpr, K_ROWS: tl.constexpr, K_SINKS: tl.constexpr,
    V_BITS: tl.constexpr, V_GROUP: tl.constexpr, V_ROWS: tl.constexpr, V_SINKS: tl.constexpr,
    WINDOW: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr,
    BIASED: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """One item: out, high and total [items G (D)] of an online softmax over its blocks."""
    item = tl.program_id(0)
    r, blocks, items, ends = plan(length, R, R2, BLOCK, PROGRAMS)
    if item >= tl.sum(items, 0):
        return
    at = tl.sum((ends <= item).to(tl.int32), 0)
    mine, of = item - pick(ends - items, r, at), pick(items, r, at)
    n, now, begin = tl.load(length + at), tl.load(q_pos + at // H), tl.load(start + at)
    k_exact, v_exact = tl.load(k_coded + at), tl.load(v_coded + at)
    rows = rows_of(q, at, G, D, D2, q.dtype.element_ty)
    m = tl.full([16], LOW, tl.float32)
    s = tl.zeros([16], tl.float32)
    o = tl.zeros([16, D2], tl.float32)
    for block in range(mine * pick(blocks, r, at) // of, (mine + 1) * pick(blocks, r, at) // of):
        first = block * BLOCK
        index = first + tl.arange(0, BLOCK)
        there = index < n
        seen = in_window(pos, begin + index, index, there, now, WINDOW, ORDERED)
        if K_PAGE > 1:
            keys = by_page(k_words, k_scale, k_low, first, begin, n, D, D2, K_BITS, K_PAGE, BLOCK)
        else:
            keys = by_slot(k_words, k_scale, k_low, first, begin, n, D, D2, K_BITS, K_GROUP, BLOCK)
        keys = exact(keys, k_tail, k_exact, at, index, there, D, D2, K_ROWS, K_SINKS).to(rows.dtype)
        scores = tl.dot(rows, tl.trans(keys), input_precision=PRECISION) * (SCALE * LOG2E)
        if BIASED:
            scores += tl.load(bias + begin + index, mask=seen, other=0.0)[None, :] * LOG2E
        scores = tl.where(seen[None, :], scores, float("-inf"))
        weights, decay, m = weigh(scores, m)
        values = by_slot(v_words, v_scale, v_low, first, begin, n, D, D2, V_BITS, V_GROUP, BLOCK)
        values = exact(values, v_tail, v_exact, at, index, there, D, D2, V_ROWS, V_SINKS).to(rows.dtype)
        o = o * decay[:, None] + tl.dot(weights.to(rows.dtype), values, input_precision=PRECISION)
        s = s * decay + tl.sum(weights, 1)
    keep(out, high, total, item, o, m, s, G, D, D2)
