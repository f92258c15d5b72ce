"""CriticalKV and CriticalAdaKV (arXiv 2502.03805): part of the budget by score, the rest by score times projected value.

Readings of what the sources leave open:
- The first stage takes int(share n first) of the untruncated product, the budget is int(share n).
- Forced entries lead by rank; the press gives them the largest float, which overflows where it is multiplied.
- Protected positions lead both stages and count in both.
- In the Ada form a head is sure of at least one entry, as in `adaptive`; the press has int(budget alpha), which may be 0.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from .adaptive import adaptive
from .top_k import ranking, top_k


def projected_value_norm(v: Float[np.ndarray, "h n d"], w_o: Float[np.ndarray, "h g d D"]) -> Float[np.ndarray, "h n"]:
    """w = mean over the group's query heads of ||v W_o||_1."""
    out = np.zeros(v.shape[:2])
    for h in range(v.shape[0]):
        for head in w_o[h]:
            out[h] += np.abs(v[h].astype(np.float64) @ head).sum(axis=-1)
    return out / w_o.shape[1]


def counts(n: int, share: float, first: float = 0.5) -> tuple[int, int]:
    """(budget, size of the first stage): int(share n), int(share n first)."""
    return int(share * n), int(share * n * first)


def critical_ranking(
    u: Float[np.ndarray, "n"],
    w: Float[np.ndarray, "n"],
    first: int,
    *,
    eps: float = 1e-4,
    protected: Bool[np.ndarray, "n"] | None = None,
) -> Int[np.ndarray, "n"]:
    """Positions from the most to the least wanted: protected and the top `first` of u, then by (u + eps) w."""
    protected = np.zeros(len(u), bool) if protected is None else protected
    forced = ranking(u, protected)[:first]
    led = protected.copy()
    led[forced] = True
    lead = [*forced, *(j for j in ranking(u, protected) if protected[j] and j not in forced)]
    rest = sorted((j for j in range(len(u)) if not led[j]), key=lambda j: (-(u[j] + eps) * w[j], j))
    return np.array([*lead, *rest], int)


def critical(
    u: Float[np.ndarray, "h n"],
    w: Float[np.ndarray, "h n"],
    budget: int,
    first: int,
    *,
    eps: float = 1e-4,
    protected: Bool[np.ndarray, "n"] | None = None,
) -> list[Int[np.ndarray, "k"]]:
    """Kept positions of each head: the first `budget` of the ranking, at least one."""
    order = [critical_ranking(a, b, first, eps=eps, protected=protected) for a, b in zip(u, w, strict=True)]
    return [np.sort(j[: max(1, budget)]) for j in order]


def critical_adaptive(
    u: Float[np.ndarray, "h n"],
    w: Float[np.ndarray, "h n"],
    budget: int,
    *,
    alpha: float = 0.2,
    first: float = 0.5,
    eps: float = 1e-4,
    protected: Bool[np.ndarray, "n"] | None = None,
) -> list[Int[np.ndarray, "k"]]:
    """The same with head budgets b_g from `adaptive` on u; int(b_g first) in the first stage, at least int(budget alpha)."""
    kept = []
    for h, slots in enumerate(adaptive(u, budget, alpha=alpha, protected=protected)):
        by_score = max(int(slots * first), min(int(budget * alpha), slots))
        order = critical_ranking(u[h], w[h], by_score, eps=eps, protected=protected)
        kept.append(np.sort(order[:slots]))
    return kept


def without_first_stage(u: Float[np.ndarray, "n"], w: Float[np.ndarray, "n"], budget: int) -> Int[np.ndarray, "k"]:
    """Top of (u + eps) w alone."""
    return top_k((u + 1e-4) * w, budget)
