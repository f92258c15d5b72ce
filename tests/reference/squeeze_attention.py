"""SqueezeAttention (arXiv 2404.04793): layers whose attention hardly turns the residual stream give slots to the others.

Readings of what is open:
- Three clusters by exact one-dimensional 3-means: the two cuts of the sorted means with the least squared error, ties to the
  lower cut. The paper runs k-means, whose outcome depends on its seed.
- Fewer than three distinct means: every layer gets b_init.
- `budgets` truncates, as the release; `exact_budgets` hands what that loses to the lowest of the other layers.
- Budgets are capped at n; what the cap frees is not given away.
- A token whose residual is zero has cosine 0.
"""

import numpy as np
from jaxtyping import Float, Int


def cosines(before: Float[np.ndarray, "l n e"], after: Float[np.ndarray, "l n e"]) -> Float[np.ndarray, "l"]:
    """c_l: mean over the prompt's tokens of cos(x, x + Attn(x))."""
    x, y = before.astype(np.float64), after.astype(np.float64)
    size = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    return np.divide((x * y).sum(-1), size, out=np.zeros_like(size), where=size > 0).mean(axis=1)


def error(values: Float[np.ndarray, "m"]) -> float:
    """Squared distance to the mean."""
    return float(((values - values.mean()) ** 2).sum())


def clusters(c: Float[np.ndarray, "l"]) -> Int[np.ndarray, "l"] | None:
    """0, 1, 2 by ascending centre; None for fewer than three distinct values."""
    if len(np.unique(c)) < 3:
        return None
    at = np.argsort(c, kind="stable")
    x, size = c[at], len(c)
    cuts = [(i, j) for i in range(1, size - 1) for j in range(i + 1, size)]
    i, j = min(cuts, key=lambda cut: (error(x[: cut[0]]) + error(x[cut[0] : cut[1]]) + error(x[cut[1] :]), cut))
    out = np.zeros(size, int)
    out[at[i:j]], out[at[j:]] = 1, 2
    return out


def budgets(group: Int[np.ndarray, "l"] | None, layers: int, init: int, least: int, n: int) -> Int[np.ndarray, "l"]:
    """b3 for the layers of the highest cosine, int((L b_init - |G3| b3) / (L - |G3|)) for the others."""
    if group is None:
        return np.full(layers, min(init, n))
    low = group == 2
    rest = (layers * init - int(low.sum()) * least) // int((~low).sum())
    return np.minimum(np.where(low, least, rest), n)


def exact_budgets(group: Int[np.ndarray, "l"] | None, layers: int, init: int, least: int, n: int) -> Int[np.ndarray, "l"]:
    """The same with total L b_init: the remainder one each to the lowest layers that are not in the last group."""
    out = budgets(group, layers, init, least, layers * max(init, least))
    others = np.arange(layers) if group is None else np.flatnonzero(group != 2)
    out[others[: layers * init - int(out.sum())]] += 1
    return np.minimum(out, n)
