"""KV footprint: how many key entries are held, and for how long, as a share of a cache that keeps everything.

    F = sum over positions q of e(q) / (T (T + 1) / 2),   T = n + m;   e(q): entries visible to position q, mean over heads
    prompt    a chunk of c tokens after h held ones: c (c + 1) / 2 + h c          (the whole prompt at once: n (n + 1) / 2)
              of which n_l go through layer l of L: sum_l n_l (n_l + 1) / 2 / L   (policies that cut it while it is read)
    m more    each sees the held entries before it and itself: m + m a + (b - a)(m - 1) / 2, held from a to b
    peak      max(chunk and what is held before it, b) / T

Eviction after a prompt that was read at once hardly lowers F: the prompt's own rows are most of it. Source: Bhaskar et al., 2025,
"Cache Me If You Can: How Many KVs Do You Need for Effective Long-Context LMs?" (arXiv 2506.17121), section 3, and the closed forms
of eval/viz/kv_footprint.py of its code. We differ: between the first and the last of the m tokens what is held is taken to change
evenly, which is exact unless a policy evicts many slots at once while decoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Footprint:
    """F and the peak, each a share of the full cache's."""

    footprint: float
    peak: float


def footprint(chunks: Sequence[tuple[float, int]], more: int, held: tuple[float, float]) -> Footprint:
    """The footprint of a prompt read in `chunks` and of `more` tokens after it.

    Args:
        chunks: (entries held before it, tokens) of each chunk of the prompt; ((0, n),) where it is read at once.
        more: tokens fed or generated after the prompt.
        held: entries before the first and after the last of them, means over heads and layers.

    Example:
        footprint([(0, 8)], 2, held=(3, 3)).footprint == 44 / 55
    """
    prompt = sum(_triangle(length) + kept * length for kept, length in chunks)
    peak = max(kept + length for kept, length in chunks)
    return _and_later(Footprint(prompt, peak), sum(length for _, length in chunks), more, held)


def thinned(layers: Sequence[int], more: int, held: tuple[float, float]) -> Footprint:
    """The same where tokens leave the prompt between layers while it is read, so many going through each; all, through the first.

    Example:
        thinned([3, 1], 0, held=(1, 1)) == Footprint((6 + 1) / 2 / 6, 2 / 3)
    """
    prompt, peak = sum(map(_triangle, layers)) / len(layers), sum(layers) / len(layers)
    return _and_later(Footprint(prompt, peak), layers[0], more, held)


def _and_later(prompt: Footprint, length: int, more: int, held: tuple[float, float]) -> Footprint:
    """Both shares, from the entries of a prompt of `length` tokens and the most of them at once."""
    before, after = held
    later = more + more * before + (after - before) * (more - 1) / 2 if more else 0.0
    total = length + more
    return Footprint((prompt.footprint + later) / _triangle(total), max(prompt.peak, after) / total)


def streaming(held: int, sinks: int, window: int) -> int:
    """Entries that a head of `sinks` and a window keeps of `held` tokens."""
    recent = min(held, window)
    return recent + min(held - recent, sinks)


def evicted(length: int, removed: float, window: int) -> int:
    """Entries that eviction of the share `removed` leaves of a chunk, beside a window: min(round((1 - removed) c) + w, c)."""
    return min(round((1 - removed) * length) + window, length)


def _triangle(n: int) -> float:
    return n * (n + 1) / 2
