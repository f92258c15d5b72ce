"""The Triton kernel of mass selection: the threshold's bits found four at a time, each row read by one program."""

import triton
import triton.language as tl


@triton.jit
def masses(row, at, lse, N: tl.constexpr, BLOCK: tl.constexpr):
    """Probabilities of a row's slots from `at` on, the same to the bit in every pass; 0 where nothing is seen."""
    index = at + tl.arange(0, BLOCK)
    s = tl.load(row + index, mask=index < N, other=float("-inf"))
    return tl.exp(s - tl.where(lse == float("-inf"), 0.0, lse))


@triton.jit
def log_sum(row, N: tl.constexpr, BLOCK: tl.constexpr):
    """log Σ exp(s) of a row, in one pass with the running maximum; -inf where nothing is seen."""
    high, total = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.float32)
    for at in range(0, N, BLOCK):
        index = at + tl.arange(0, BLOCK)
        s = tl.load(row + index, mask=index < N, other=float("-inf"))
        before, high = high, tl.maximum(high, s)
        safe = tl.where(high == float("-inf"), 0.0, high)
        total = total * tl.exp(before - safe) + tl.exp(s - safe)
    top = tl.max(high, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return tl.where(top == float("-inf"), top, top + tl.log(tl.sum(total * tl.exp(high - safe), 0)))


@triton.jit
def threshold_of(row, lse, goal, N: tl.constexpr, BLOCK: tl.constexpr):
    """The largest bits t with Σ p[p >= t] >= goal, 0 where there are none: of non-negative floats the bits have the same order."""
    found = tl.full([], 0, tl.int32)
    digit = tl.arange(0, 16)
    for step in range(8):
        shift = 28 - 4 * step
        trial = found + (digit << shift)
        mass = tl.zeros([16, BLOCK], tl.float32)
        for at in range(0, N, BLOCK):
            p = masses(row, at, lse, N, BLOCK)
            there = p.to(tl.int32, bitcast=True)[None, :] >= trial[:, None]
            mass += tl.where(there, p[None, :], 0.0)
        enough = (tl.sum(mass, 1) >= goal) & (trial >= 0)  # a digit of the sign bit is none
        found += tl.max(tl.where(enough, digit, 0), 0) << shift
    return found


@triton.jit
def select(scores, tau, weights, lse_out, N: tl.constexpr, SLOP: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """A row's weights [N], and its lse. BLOCK slots at a time where sixteen thresholds are tried, else WIDE."""
    at_row = tl.program_id(0).to(tl.int64)
    row, goal = scores + at_row * N, tl.load(tau) - SLOP
    lse = log_sum(row, N, WIDE)
    tl.store(lse_out + at_row, lse)
    threshold = threshold_of(row, lse, goal, N, BLOCK)
    above = tl.zeros([WIDE], tl.float32)
    for at in range(0, N, WIDE):
        p = masses(row, at, lse, N, WIDE)
        above += tl.where(p.to(tl.int32, bitcast=True) > threshold, p, 0.0)
    value = tl.maximum(threshold.to(tl.float32, bitcast=True), 1.1754943508222875e-38)
    wanted, before = tl.ceil((goal - tl.sum(above, 0)) / value), tl.full([], 0, tl.int32)
    for at in range(0, N, WIDE):
        p = masses(row, at, lse, N, WIDE)
        bits = p.to(tl.int32, bitcast=True)
        equal = ((bits == threshold) & (p > 0)).to(tl.int32)
        rank = before + tl.cumsum(equal, 0)
        taken = (bits > threshold) | ((equal > 0) & (rank.to(tl.float32) <= wanted))
        index = at + tl.arange(0, WIDE)
        tl.store(weights + at_row * N + index, tl.where(taken, p, 0.0), mask=index < N)
        before += tl.sum(equal, 0)
