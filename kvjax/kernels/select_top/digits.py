"""The Triton kernel of selection by rank: the threshold's bits found four at a time, each row read by one program."""

import triton
import triton.language as tl


@triton.jit
def keys_of(row, at, N: tl.constexpr, BLOCK: tl.constexpr):
    """A row's keys from `at` on; 0 beyond its end."""
    index = at + tl.arange(0, BLOCK)
    return tl.load(row + index, mask=index < N, other=0)


@triton.jit
def threshold_of(row, k, N: tl.constexpr, BLOCK: tl.constexpr):
    """The largest t that at least k keys reach, 0 where there is none."""
    found = tl.full([], 0, tl.uint32)
    digit = tl.arange(0, 16)
    for step in range(8):
        shift = 28 - 4 * step
        trial = found + (digit << shift).to(tl.uint32)
        count = tl.zeros([16, BLOCK], tl.int32)
        for at in range(0, N, BLOCK):
            count += (keys_of(row, at, N, BLOCK)[None, :] >= trial[:, None]).to(tl.int32)
        enough = tl.sum(count, 1) >= k
        found += (tl.max(tl.where(enough, digit, 0), 0) << shift).to(tl.uint32)
    return found


@triton.jit
def select(rank, many, taken, N: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """A row's mask [N]. BLOCK keys at a time where sixteen thresholds are tried, else WIDE."""
    at_row = tl.program_id(0).to(tl.int64)
    row, k = rank + at_row * N, tl.load(many + at_row)
    threshold = threshold_of(row, k, N, BLOCK)
    above = tl.zeros([WIDE], tl.int32)
    for at in range(0, N, WIDE):
        above += (keys_of(row, at, N, WIDE) > threshold).to(tl.int32)
    spare, before = k - tl.sum(above, 0), tl.full([], 0, tl.int32)
    for at in range(0, N, WIDE):
        keys = keys_of(row, at, N, WIDE)
        equal = ((keys == threshold) & (keys > 0)).to(tl.int32)
        first = (equal > 0) & (before + tl.cumsum(equal, 0) <= spare)
        index = at + tl.arange(0, WIDE)
        tl.store(taken + at_row * N + index, ((keys > threshold) | first).to(tl.int8), mask=index < N)
        before += tl.sum(equal, 0)
