"""TriAttention (arXiv 2604.04921): queries before rotation gather round a mean, so a key's future attention is a cosine series.

Pairs (f, f + d/2) are complex numbers. Readings of what the sources leave open:
- Keys are un-rotated from their true positions; the round's position T is as given. In the release it is that of the token to
  come: as many tokens as the text has.
- The prompt is inside the budget; a budget that leaves no room beside it is refused.
- `union` works on the rows it is given (query heads, or their group maxima); ties to the lower position.
- z-scores, where wanted, run over the tokens of each head that are not the prompt's, std over the count.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Complex, Float, Int

from .top_k import top_k

#: Distances ahead: 1, 2, 4, ..., 65536.
OFFSETS = 2 ** np.arange(17)


def pairs(x: Float[np.ndarray, "*b d"]) -> Complex[np.ndarray, "*b f"]:
    """x_f + i x_{f + d/2}."""
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    return a + 1j * b


def calibrate(q_raw: Float[np.ndarray, "h g n d"]) -> tuple[Complex[np.ndarray, "h g f"], Float[np.ndarray, "h g f"]]:
    """(mu, m): mean of the unrotated queries' pairs, mean of their absolute values."""
    q = pairs(q_raw)
    return q.mean(axis=2), np.abs(q).mean(axis=2)


def score(
    mu: Complex[np.ndarray, "f"],
    m: Float[np.ndarray, "f"],
    k_raw: Complex[np.ndarray, "n f"],
    positions: Int[np.ndarray, "n"],
    at: int,
    omega: Float[np.ndarray, "f"],
    *,
    offsets: Int[np.ndarray, "o"] = OFFSETS,
    scale: float = 1.0,
    series: bool = True,
    corrected: bool = True,
    reduce: Callable = np.mean,
) -> Float[np.ndarray, "n"]:
    """reduce over offsets of sum_f s^2 [|mu||k| cos((T - p + offset) omega + arg(mu conj k)) + (m - |mu|) |k|].

    Without `series` the second term is left alone; without `corrected` it is m |k|.
    """
    out = np.zeros((len(offsets), len(k_raw)))
    for o, offset in enumerate(offsets):
        for j, (k, p) in enumerate(zip(k_raw, positions, strict=True)):
            turn = (at - p + offset) * omega + np.angle(mu * np.conj(k))
            waves = np.abs(mu) * np.abs(k) * np.cos(turn) if series else 0.0
            rest = (m - np.abs(mu) if corrected else m) * np.abs(k)
            out[o, j] = (scale**2 * (waves + rest)).sum()
    return reduce(out, axis=0)


def standard(scores: Float[np.ndarray, "*a n"], prompt: int = 0) -> Float[np.ndarray, "*a n"]:
    """z-score over the tokens of each head behind a pinned prompt, whose own scores do not matter: 0."""
    later = scores[..., prompt:]
    z = (later - later.mean(axis=-1, keepdims=True)) / later.std(axis=-1, keepdims=True)
    return np.concatenate([np.zeros_like(scores[..., :prompt]), z], -1)


# ---- Which tokens, of scores that are 0 .. n - 1 in position order


def room(budget: int, prompt: int) -> int:
    """Slots left beside the pinned prompt."""
    if budget <= prompt:
        raise ValueError(f"a budget of {budget} leaves no room beside a prompt of {prompt} tokens")
    return budget - prompt


def union(scores: Float[np.ndarray, "a n"], *, budget: int, prompt: int = 0) -> Int[np.ndarray, "k"]:
    """One shared set: each row's best, their union, cut to the best by the maximum over rows; the prompt on top."""
    slots, later = room(budget, prompt), scores[:, prompt:]
    together = sorted({int(j) for row in later for j in top_k(row, slots)})
    best = later.max(axis=0)
    chosen = sorted(together, key=lambda j: (-best[j], j))[:slots]
    return np.concatenate([np.arange(prompt), prompt + np.sort(np.array(chosen, int))])


def per_layer_per_head(scores: Float[np.ndarray, "h g n"], *, budget: int, prompt: int = 0) -> Int[np.ndarray, "h k"]:
    """Each KV head of a layer its own set, by the group maximum."""
    slots = room(budget, prompt)
    return np.stack([_pinned(row, slots, prompt) for row in scores.max(axis=1)])


def per_head(scores: Float[np.ndarray, "l h g n"], *, budget: int, prompt: int = 0) -> Int[np.ndarray, "h k"]:
    """Each KV head one set for every layer, by the mean over layers of the group maximum."""
    slots = room(budget, prompt)
    return np.stack([_pinned(row, slots, prompt) for row in scores.max(axis=2).mean(axis=0)])


def _pinned(row: Float[np.ndarray, "n"], slots: int, prompt: int) -> Int[np.ndarray, "k"]:
    return np.concatenate([np.arange(prompt), prompt + top_k(row[prompt:], slots)])
