"""The Triton kernel of scores from codes: keys decoded a tile at a time, in registers, and multiplied as dense ones are."""

import triton
import triton.language as tl

from kvjax.kernels.ragged_attention.split import in_window


@triton.jit
def decode(
    codes, book, slot, there,
    M: tl.constexpr, M2: tl.constexpr, C: tl.constexpr, E: tl.constexpr, E2: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Keys [slots, M2 E2] whose groups are the centroids that the codes name; zeros where not `there` and in what pads."""
    m, e = tl.arange(0, M2), tl.arange(0, E2)
    code = tl.load(codes + slot.to(tl.int64)[:, None] * M + m[None, :], mask=there[:, None] & (m < M)[None, :], other=0)
    row = tl.minimum(code.to(tl.int32), C - 1)
    if not SHARED:
        row += m[None, :] * C
    mask = there[:, None, None] & ((m < M)[:, None] & (e < E)[None, :])[None, :, :]
    keys = tl.load(book + row[:, :, None] * E + e[None, None, :], mask=mask, other=0)
    return tl.reshape(keys, [slot.shape[0], M2 * E2])


@triton.jit
def rows_of(q, at, G: tl.constexpr, M: tl.constexpr, E: tl.constexpr, M2: tl.constexpr, E2: tl.constexpr):
    """The 16 query rows of a region with their channels where `decode` puts them."""
    row, channel = tl.arange(0, 16)[:, None], tl.arange(0, M2 * E2)[None, :]
    m, e = channel // E2, channel % E2
    mask = (row < G) & (m < M) & (e < E)
    return tl.load(q + (at.to(tl.int64) * G + row) * (M * E) + m * E + e, mask=mask, other=0)


@triton.jit
def score(
    q, codes, book, pos, start, length, q_pos, out,
    H: tl.constexpr, G: tl.constexpr, M: tl.constexpr, M2: tl.constexpr, C: tl.constexpr, E: tl.constexpr, E2: tl.constexpr,
    SHARED: tl.constexpr, CAP: tl.constexpr, WINDOW: tl.constexpr, SCALE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """A block of a region's scores [R G CAP], -inf where the query does not see the slot."""
    at = tl.program_id(1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(start + at) + index
    there = index < tl.minimum(tl.load(length + at), CAP)
    seen = in_window(pos, slot, index, there, tl.load(q_pos + at // H), WINDOW, ORDERED)
    own = book + (at % H) * (1 if SHARED else M) * C * E
    rows = rows_of(q, at, G, M, E, M2, E2)
    keys = decode(codes, own, slot, seen, M, M2, C, E, E2, SHARED)
    if rows.dtype != keys.dtype:
        rows, keys = rows.to(tl.float32), keys.to(tl.float32)
    scores = tl.dot(rows, tl.trans(keys), input_precision=PRECISION) * SCALE
    row = tl.arange(0, 16)[:, None]
    place = (at.to(tl.int64) * G + row) * CAP + index[None, :]
    tl.store(out + place, tl.where(seen[None, :], scores, float("-inf")), mask=(row < G) & (index < CAP)[None, :])
