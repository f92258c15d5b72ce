"""ARKV (arXiv 2603.08727): how many slots of a layer stay exact, and what an overflow leaves exact, in eight bits, or nowhere.

OQ = E^(1/t1) V^(1/t2) K^(1/t3) of the last W rows' columns before the window, the greatest that of all layers. Readings of what is
open: what was coded stays coded; a scale for every token and KV head; scores are pooled in the order of the text.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from .pooling import avg_pool

T = (7.774, 5.407, 5.528)


def quality(a: Float[np.ndarray, "h g w n"], t: tuple[float, float, float] = T) -> float:
    """OQ of rows before the window."""
    a = a.astype(np.float64)
    off = a - a.mean(2, keepdims=True)
    m2, m4 = (off**2).mean(2), (off**4).mean(2)
    e, v, k = -(a * np.log(a + 1e-10)).sum(), a.var(2, ddof=1).sum(), (m4 / np.maximum(m2, 1e-8) ** 2).sum()
    return e ** (1 / t[0]) * v ** (1 / t[1]) * k ** (1 / t[2])


def origin(oq: Float[np.ndarray, " l"], budget: int, window: int, n: int) -> Int[np.ndarray, " l"]:
    """round(OQ / max OQ · (C - W)), in 0 .. min(C - W, n - W)."""
    room = budget - window
    return np.clip(np.rint(oq / oq.max() * room), 0, min(room, n - window)).astype(int)


def split(past: int, origin: int, window: int) -> tuple[int, int, int]:
    """(exact, coded, evicted) of the slots before the window."""
    keep = past * 3 // 4
    exact = int(np.clip(origin - window, 0, keep))
    return exact, keep - exact, past - keep


def cut(
    p: Float[np.ndarray, " m"], pos: Int[np.ndarray, " m"], coded: Bool[np.ndarray, " m"], length: int, origin: int, window: int
) -> tuple[Bool[np.ndarray, " m"], Bool[np.ndarray, " m"]]:
    """(stays, coded) of held slots in the order of the text, whose attention by the newest query is p."""
    past = np.flatnonzero(pos < length - window)
    smooth = avg_pool(p[past][None], 5)[0]
    best = past[np.lexsort((past, -smooth))]
    exact, eight, _ = split(len(past), origin, window)
    stays = pos >= length - window
    stays[best[: exact + eight]] = True
    now = coded.copy()
    now[best[exact : exact + eight]] = True
    return stays, now & stays


def fp8(x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """The nearest e4m3 number of x over its row's scale of 16 bits, times it."""
    scale = (np.abs(x).max(1) / 448).astype(np.float16).astype(np.float64)
    y = np.clip(x / np.where(scale > 0, scale, 1)[:, None], -448, 448)
    step = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(np.abs(y), 2.0**-20))), -6) - 3)
    return np.rint(y / step) * step * scale[:, None]
