"""Which entries of a recorded kept set are decided: further from the threshold than float32 noise."""

import numpy as np

#: Score gaps below this share of the largest dropped score may fall either way.
NOISE = 1e-5


def decided(
    keep: np.ndarray, scores: np.ndarray | None, margin: float | None, *, shared: bool = False, safe: int = 0
) -> np.ndarray:
    """Mask [l, b, h, n] of the entries that must match exactly.

    All of them if the recorded margin says so; else those away from the threshold of the recorded scores.

    Args:
        keep, scores: [l, b, h, n], as recorded; without scores everything is compared.
        margin: the recorded relative gap, None if unknown.
        shared: whether the heads of a layer share one threshold. safe: entries a head was sure of beforehand.
    """
    if scores is None or (margin is not None and margin >= NOISE):
        return np.ones_like(keep)
    out = np.ones_like(keep)
    for layer, row in np.ndindex(keep.shape[:2]):
        kept, score, sure = keep[layer, row], scores[layer, row].astype(np.float64), out[layer, row]
        forced = _forced(score, safe) if shared else np.zeros_like(kept)
        groups = [np.ones_like(kept)] if shared else [_only(h, kept.shape) for h in range(len(kept))]
        for group in groups:
            sure &= ~_close(kept, score, group & ~forced)
        if shared and safe:
            sure &= ~_at_safe_edge(kept, score, forced)
    return out


def _only(head: int, shape: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[head] = True
    return mask


def _forced(score: np.ndarray, safe: int) -> np.ndarray:
    order = np.argsort(-score, axis=-1, kind="stable")
    mask = np.zeros(score.shape, bool)
    np.put_along_axis(mask, order[:, :safe], True, axis=-1)
    return mask


def _close(kept: np.ndarray, score: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Entries of the group next to its threshold, if the gap there is within noise."""
    inside, outside = score[group & kept], score[group & ~kept]
    if not inside.size or not outside.size:
        return np.zeros_like(kept)
    low, high, noise = inside.min(), outside.max(), NOISE * np.abs(outside).max()
    if low != high and abs(low - high) >= noise:
        return np.zeros_like(kept)
    return group & (score >= low - noise) & (score <= high + noise)


def _at_safe_edge(kept: np.ndarray, score: np.ndarray, forced: np.ndarray) -> np.ndarray:
    """The last forced and the first free entry of a head, if within noise and if being forced made the difference."""
    last = np.where(forced, score, np.inf).min(-1, keepdims=True)
    first = np.where(forced, -np.inf, score).max(-1, keepdims=True)
    tie = last - first < NOISE * np.abs(np.where(np.isfinite(first), first, 0.0))
    lost = (~kept & ~forced & (score >= first)).any(-1, keepdims=True)
    return tie & lost & (score >= first) & (score <= last)
