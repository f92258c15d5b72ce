"""Attention Matching (arXiv 2602.16284): t keys with biases and new values that answer reference queries as all keys did.

One KV head; queries of its whole group are rows of Q [N, d]. Readings of what the sources leave open:
- Exponentials are relative to each query's maximum over ALL keys, which weighs the queries of the bias fit.
- Non-negative least squares is an unconstrained fit, clamped to [low, high], then `steps` projected-gradient steps.
- Ties of key scores and of pursuit go to the lower index. Kept keys come in the order of choice; biases and values follow.
- The ridge is lambda, lambda ||X||_2^2 or lambda ||X||_F^2 / t.
- Pursuit that refits every few choices gives new keys the weight 1e-12 in between and refits at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .pooling import max_pool
from .softmax import softmax

TINY = 1e-12


@dataclass(frozen=True)
class Seen:
    """What the reference queries see: scaled logits z, E = exp(z - row maximum), its row sums, P = E / row sums."""

    z: Float[np.ndarray, "m n"]
    e: Float[np.ndarray, "m n"]
    total: Float[np.ndarray, "m"]
    p: Float[np.ndarray, "m n"]


def look(q: Float[np.ndarray, "m d"], k: Float[np.ndarray, "n d"]) -> Seen:
    z = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(q.shape[1])
    e = np.exp(z - z.max(axis=1, keepdims=True))
    total = e.sum(axis=1)
    return Seen(z, e, total, e / total[:, None])


# ---- Which keys


def rms(p: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "n"]:
    return np.sqrt((p**2).mean(axis=0))


def mean(p: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "n"]:
    return p.mean(axis=0)


def largest(p: Float[np.ndarray, "m n"]) -> Float[np.ndarray, "n"]:
    return p.max(axis=0)


def highest(seen: Seen, t: int, *, score: Callable = rms, pool: int = 1) -> Int[np.ndarray, "t"]:
    """The t keys of highest score, best first, after a max-pool of `pool`."""
    return np.argsort(-max_pool(score(seen.p), pool), kind="stable")[:t]


def pursuit(
    seen: Seen, t: int, *, picks: int = 1, refit: int = 1, normalised: bool = False
) -> tuple[Int[np.ndarray, "t"], Float[np.ndarray, "t"]]:
    """Orthogonal matching pursuit of the row sums: (keys in order of choice, weights B).

    Each round takes the `picks` columns of largest E_j . residual (over ||E_j|| if `normalised`). The first and then every
    `refit`-th round fits the weights again, clamped at 1e-12 from below.
    """
    chosen, b, rounds = [], np.zeros(0), 0
    norm = np.linalg.norm(seen.e, axis=0) if normalised else np.ones(seen.e.shape[1])
    while len(chosen) < t:
        gain = (seen.total - seen.e[:, chosen] @ b) @ seen.e / norm
        gain[chosen] = -np.inf
        chosen.extend(np.argsort(-gain, kind="stable")[: min(picks, t - len(chosen))].tolist())
        if rounds % refit == 0 or len(chosen) == t:
            b = fit_weights(seen, chosen, low=TINY, high=np.inf)
        else:
            b = np.append(b, np.full(len(chosen) - len(b), TINY))
        rounds += 1
    return np.array(chosen, int), b


# ---- Biases and values


def fit_weights(
    seen: Seen, chosen: Int[np.ndarray, "t"], *, low: float = np.exp(-3), high: float = np.exp(3), steps: int = 0
) -> Float[np.ndarray, "t"]:
    """B = argmin ||E_sel B - total||, clamped, then B <- clamp(B - E^T (E B - total) / ||E||_2^2). beta = ln B."""
    e = seen.e[:, chosen]
    b = np.clip(np.linalg.lstsq(e, seen.total, rcond=None)[0], low, high)
    for _ in range(steps):
        b = np.clip(b - e.T @ (e @ b - seen.total) / np.linalg.norm(e, 2) ** 2, low, high)
    return b


def spectral(x: Float[np.ndarray, "m t"]) -> float:
    return np.linalg.norm(x, 2) ** 2


def frobenius(x: Float[np.ndarray, "m t"]) -> float:
    return (x**2).sum() / x.shape[1]


def fixed(x: Float[np.ndarray, "m t"]) -> float:
    return 1.0


def fit_values(
    seen: Seen,
    chosen: Int[np.ndarray, "t"],
    beta: Float[np.ndarray, "t"],
    v: Float[np.ndarray, "n d"],
    *,
    ridge: float = 0.0,
    scale: Callable = fixed,
) -> Float[np.ndarray, "t d"]:
    """C2 = argmin ||X C2 - P V||^2 + ridge scale(X) ||C2||^2, X = softmax(z_sel + beta); least norm where it is open."""
    x, wanted = softmax(seen.z[:, chosen] + beta), seen.p @ v.astype(np.float64)
    if ridge == 0:
        return np.linalg.lstsq(x, wanted, rcond=None)[0]
    return np.linalg.solve(x.T @ x + ridge * scale(x) * np.eye(x.shape[1]), x.T @ wanted)


def compacted(
    q: Float[np.ndarray, "m d"], k: Float[np.ndarray, "t d"], beta: Float[np.ndarray, "t"], values: Float[np.ndarray, "t d"]
) -> np.ndarray:
    """softmax(q C1 / sqrt(d) + beta) C2."""
    return softmax(q @ k.T / np.sqrt(q.shape[1]) + beta) @ values
