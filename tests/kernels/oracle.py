"""The two attentions in float64 NumPy, one query at a time."""

import numpy as np


def softmax_row(q, k, v, bias=0.0):
    """(out [d], lse, p [n]) of one query over the keys it sees; (0, -inf, []) over none."""
    if len(k) == 0:
        return np.zeros(v.shape[-1]), -np.inf, np.zeros(0)
    scores = k @ q / np.sqrt(q.shape[-1]) + bias
    lse = scores.max() + np.log(np.exp(scores - scores.max()).sum())
    p = np.exp(scores - lse)
    return p @ v, lse, p


def prefill(q, k, v, *, offset, window=None, length=None):
    """(out [b h g t d], lse [b h g t], column sums [b h g n]) of causal attention."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    b, h, g, t, d = q.shape
    out, lse, sums = np.zeros(q.shape), np.zeros(q.shape[:-1]), np.zeros((b, h, g, k.shape[2]))
    for row, head, group, i in np.ndindex(b, h, g, t):
        at = offset + i
        seen = slice(0 if window is None else max(0, at - window + 1), at + 1)
        found = softmax_row(q[row, head, group, i], k[row, head, seen], v[row, head, seen])
        out[row, head, group, i], lse[row, head, group, i], p = found
        if length is None or at < length[row]:
            sums[row, head, group, seen] += p
    return out, lse, sums


def ragged(q, k, v, pos, start, length, q_pos, *, bias=None, window=None, cap=1):
    """(out [b h g t d], lse [b h g t], probabilities [b h g t cap]) of attention over regions of a pool."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    bias = np.zeros(len(k)) if bias is None else np.asarray(bias, np.float64)
    b, h, g, t, d = q.shape
    out, lse, probs = np.zeros(q.shape), np.zeros(q.shape[:-1]), np.zeros((b, h, g, t, cap))
    for row, head, group, i in np.ndindex(b, h, g, t):
        slots = np.arange(start[row, head], start[row, head] + length[row, head])
        seen = pos[slots] <= q_pos[row, i]
        if window is not None:
            seen &= pos[slots] > q_pos[row, i] - window
        where = (row, head, group, i)
        out[where], lse[where], p = softmax_row(q[where], k[slots[seen]], v[slots[seen]], bias[slots[seen]])
        index = np.flatnonzero(seen)
        probs[where][index[index < cap]] = p[index < cap]
    return out, lse, probs
