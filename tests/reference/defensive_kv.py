"""DefensiveKV and Layer-DefensiveKV (arXiv 2510.13334): worst-case attention with a floor, weighed by projected values.

Readings of what is open:
- The floor is the mean of the maxima over the columns before the window, for each KV head.
- A row whose pooled mass is 0 stays 0.
- The forced set's attention is normalised over the columns before the window; the bias is the mean over all heads of a layer of
  what the rows, as they are, give the last W of them, as in the release (`release_bias`). Without it both are taken from the
  whole rows, head by head: the bias is the window's own mass.
- At most int((n - W) ratio) - W are forced, 0 where that is negative: the release counts what is before the window.
- The token that crosses the threshold is not forced; a sum that never reaches it forces everything, up to the clamp.
- "Maximum score" is the highest of the layer for one layer. For the whole model protected entries are above all others, so that
  they survive; `above_all=False` is the other reading, the maximum of their own layer.
- Equal scores: the window first (later first), then what is forced, then the lower layer, head and position.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from .highest import floor_share, order
from .pooling import avg_pool

# ---- Scores


def mass_preserving_pool(a: Float[np.ndarray, "*b m"], size: int = 5) -> Float[np.ndarray, "*b m"]:
    """avg_pool of every row, rescaled to the row's own sum."""
    pooled = avg_pool(a, size)
    total = pooled.sum(axis=-1, keepdims=True)
    return pooled * np.divide(a.sum(axis=-1, keepdims=True), total, out=np.zeros_like(total), where=total > 0)


def risk(a: Float[np.ndarray, "h g w m"], size: int = 5) -> Float[np.ndarray, "h m"]:
    """m = max over the group and the rows; u = max(m, mean over tokens of m)."""
    worst = mass_preserving_pool(a, size).max(axis=(1, 2))
    return np.maximum(worst, worst.mean(axis=-1, keepdims=True))


def value_size(v: Float[np.ndarray, "h m d"], w_o: Float[np.ndarray, "h g d e"]) -> Float[np.ndarray, "h m"]:
    """w: mean over the group of ||v W_o||_1, w_o the rows of the output projection for each query head."""
    projected = np.einsum("hmd,hgde->hgme", v.astype(np.float64), w_o.astype(np.float64))
    return np.abs(projected).sum(axis=-1).mean(axis=1)


def weigh(u: Float[np.ndarray, "h m"], w: Float[np.ndarray, "h m"]) -> Float[np.ndarray, "h m"]:
    """u w / (sum of w over the KV heads): each token's share, not each head's."""
    return u * w / w.sum(axis=0)


# ---- What is forced


def crossing(a: Float[np.ndarray, "m"], threshold: float) -> int:
    """First index, 0-based, where the descending cumulative sum reaches the threshold: so many are forced."""
    reached = np.cumsum(np.sort(a)[::-1]) >= threshold
    return int(reached.argmax()) if reached.any() else len(a)


def forced(
    rows: Float[np.ndarray, "h g w n"], ratio: float, *, threshold: float = 0.9, release_bias: bool = True
) -> Bool[np.ndarray, "h m"]:
    """The highest mean attention of each head until it covers the threshold, at most int((n - W) ratio) - W."""
    w, n = rows.shape[2:]
    mean = rows.mean(axis=(1, 2))
    older = mean[:, : n - w]
    most = max(floor_share(n - w, ratio) - w, 0)
    out = np.zeros(older.shape, bool)
    for h in range(len(out)):
        a = older[h] / older[h].sum() if release_bias else older[h]
        bias = older[:, -w:].sum(axis=1).mean() if release_bias else mean[h, n - w :].sum()
        out[h, order(a)[: min(crossing(a, threshold - bias), most)]] = True
    return out


# ---- Who stays


@dataclass
class Layer:
    """One layer's scores of the columns before the window, and what is forced among them."""

    u: Float[np.ndarray, "h m"]
    forced: Bool[np.ndarray, "h m"]
    window: int

    def raised(self, top: float) -> Float[np.ndarray, "h n"]:
        """Scores of all columns, `top` for forced and window ones."""
        recent = np.full((len(self.u), self.window), top)
        return np.concatenate([np.where(self.forced, top, self.u), recent], axis=1)

    def ranked(self, top: float) -> list[tuple[float, int, int, int, int]]:
        """(-score, class, order within the class, head, position) of every entry, best first."""
        scores = self.raised(top)
        m, entries = self.u.shape[1], []
        for h, j in np.ndindex(scores.shape):
            kind = 0 if j >= m else 1 if self.forced[h, j] else 2
            entries.append((-scores[h, j], kind, -j if kind == 0 else 0, h, j))
        return sorted(entries)

    def kept(self, total: int) -> list[Int[np.ndarray, "k"]]:
        """The `total` best entries of the layer, as positions of each head."""
        best = self.ranked(self.u.max(initial=0.0))[: max(total, 0)]
        return [np.array(sorted(j for *_, g, j in best if g == h), int) for h in range(len(self.u))]


def layer_of(
    rows: Float[np.ndarray, "h g w n"],
    v: Float[np.ndarray, "h n d"],
    w_o: Float[np.ndarray, "h g d e"],
    ratio: float,
    *,
    size: int = 5,
    threshold: float = 0.9,
    release_bias: bool = True,
) -> Layer:
    """Scores and forced set of one layer from its last W rows."""
    w, n = rows.shape[2:]
    older = rows[..., : n - w].astype(np.float64)
    u = weigh(risk(older, size), value_size(v[:, : n - w], w_o))
    return Layer(u, forced(rows, ratio, threshold=threshold, release_bias=release_bias), w)


def defensive(layer: Layer, ratio: float) -> list[Int[np.ndarray, "k"]]:
    """DefensiveKV: the int(n ratio h) best entries of the layer."""
    h, m = layer.u.shape
    return layer.kept(floor_share((m + layer.window) * h, ratio))


def layer_counts(layers: list[Layer], total: int, *, above_all: bool = True) -> Int[np.ndarray, "l"]:
    """How many of the model's `total` best entries lie in each layer."""
    entries = []
    for i, layer in enumerate(layers):
        top = np.inf if above_all else layer.u.max(initial=0.0)
        entries += [(score, kind, within, i, h, j) for score, kind, within, h, j in layer.ranked(top)]
    best = sorted(entries)[:total]
    return np.array([sum(e[3] == i for e in best) for i in range(len(layers))])


def layer_defensive(layers: list[Layer], ratio: float, *, above_all: bool = True) -> list[list[Int[np.ndarray, "k"]]]:
    """Layer-DefensiveKV: layers share int(n ratio h l) entries by one ranking; then each layer its best."""
    h, m = layers[0].u.shape
    total = floor_share((m + layers[0].window) * h * len(layers), ratio)
    counts = layer_counts(layers, total, above_all=above_all)
    return [layer.kept(count) for layer, count in zip(layers, counts, strict=True)]
