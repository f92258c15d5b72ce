"""Named shapes as operands: lengths shrunk where an oracle needs them shorter; head dimension, group and skew stay."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from . import oracle
from . import test_codebook_scores as codes
from . import test_gather_attention as listed
from . import test_window_scores as window
from .test_ragged_attention import make


def shrunk(lengths, most: int):
    """Lengths [b][h] with a sum of about `most` at most, in the same proportions."""
    part = min(1.0, most / max(1, np.sum([sum(row) for row in lengths])))
    return [[math.ceil(part * n) for n in row] for row in lengths]


def regions(shape, dtype: str, most: int):
    """Operands of ragged attention, and its (out, lse)."""
    operands = make(shrunk(shape.lengths, most), shape.g, shape.t, shape.d, dtype)
    return operands, oracle.ragged(*map(np.asarray, operands))[:2]


def lists(shape, dtype: str, most: int):
    """Operands of attention over listed slots, and its (out, lse)."""
    counts = shrunk(shape.counts, most)
    longest = max(map(max, counts))
    operands = listed.make(counts, longest + 9, min(shape.slots, sum(map(sum, counts)) + 99), shape.g, shape.d, dtype)
    return operands, listed.wanted(*operands)


def coded(shape, dtype: str, most: int):
    """Operands of scores from codes, their cap, and the scores."""
    lengths = shrunk(((shape.slots,) * shape.h,), most)
    q, *rest = codes.operands(lengths, shape.g, 1, shape.d, shape.m, shape.c, False)
    operands, cap = (q.astype(dtype), *rest), lengths[0][0]
    exact = np.asarray(q.astype(dtype), np.float64)
    return operands, cap, codes.oracle(exact, *map(np.asarray, rest), window=None, cap=cap)


def windows(shape, dtype: str, most: int):
    """Operands of window scores, and the sums."""
    lengths = shrunk((shape.lengths,), most)[0]
    qk, where = window.make(lengths, max(lengths) + 20, shape.h, shape.g, shape.w, shape.d, dtype)
    return qk, where, window.wanted(*qk, **where)


def prompts(shape, dtype: str, part: int):
    """Operands of prefill attention with a length, positions and a window a `part` of theirs, and (out, lse, column sums)."""
    small = {name: getattr(shape, name) and getattr(shape, name) // part for name in ("t", "n", "offset", "window")}
    shape = dataclasses.replace(shape, **small)
    rng = np.random.default_rng(0)
    sizes = (1, shape.h, shape.g, shape.t, shape.d), *((1, shape.h, shape.n, shape.d),) * 2
    # values have a mean: a long row's average of numbers around 0 is all cancellation
    qkv = [jnp.asarray(rng.normal(size=size) + mean, dtype) for size, mean in zip(sizes, (0, 0, 1), strict=True)]
    length = np.array([shape.offset + shape.t - 3], np.int32)
    return qkv, shape, length, oracle.prefill(*map(np.asarray, qkv), offset=shape.offset, window=shape.window, length=length)
