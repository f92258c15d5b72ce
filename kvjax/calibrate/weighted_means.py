"""Weighted k-means in a few channels: k-means++ seeds, then updates of all centroids at once."""

import numpy as np
from jaxtyping import Float, Float32, Int


def weighted_means(
    points: Float[np.ndarray, "n e"], weight: Float[np.ndarray, " n"], centroids: int, *, seed: int, max_iter: int
) -> Float32[np.ndarray, "c e"]:
    """C = argmin Σ_j w_j min_m ||x_j - C_m||², a local minimum or where `max_iter` updates lead; never a NaN.

    With fewer distinct points than centroids every point gets its own and the rest are copies of the first. Weights that are no
    numbers count as 0, and weights that are all 0 as 1. A centroid nothing is nearest to moves to the point that is worst served.
    """
    points = points.astype(np.float32)
    distinct = np.unique(points, axis=0)
    if len(distinct) <= centroids:
        return np.concatenate([distinct, np.repeat(distinct[:1], centroids - len(distinct), axis=0)])
    weight = np.nan_to_num(weight.astype(np.float64), posinf=0.0)
    weight = weight if weight.sum() > 0 else np.ones_like(weight)
    book = seeded(points, weight, centroids, seed)
    for _ in range(max_iter):
        near, away = nearest(points, book)
        mass = np.bincount(near, weight, centroids)
        sums = np.stack([np.bincount(near, weight * x, centroids) for x in points.T], 1)
        new = np.where(mass[:, None] > 0, sums / np.where(mass > 0, mass, 1)[:, None], book).astype(np.float32)
        empty = np.flatnonzero(np.bincount(near, minlength=centroids) == 0)
        new[empty] = points[np.argsort(-weight * away, kind="stable")[: len(empty)]]
        if (new == book).all():
            break
        book = new
    return book


def nearest(
    points: Float32[np.ndarray, "n e"], book: Float32[np.ndarray, "c e"]
) -> tuple[Int[np.ndarray, " n"], Float32[np.ndarray, " n"]]:
    """(index of each point's nearest centroid, ties to the lower one, and its squared distance)."""
    score = points @ book.T - (book**2).sum(1) / 2
    near = score.argmax(1)
    away = (points**2).sum(1) - 2 * score[np.arange(len(points)), near]
    return near, np.maximum(away, 0)


def seeded(
    points: Float32[np.ndarray, "n e"], weight: Float[np.ndarray, " n"], centroids: int, seed: int
) -> Float32[np.ndarray, "c e"]:
    """Points drawn one after the other, each with a probability proportional to w times its squared distance to those before."""
    draw = np.random.default_rng(seed)
    chosen = [np.searchsorted(np.cumsum(weight), draw.random() * weight.sum(), side="right")]
    away = ((points - points[chosen[0]]) ** 2).sum(1)
    while len(chosen) < centroids:
        total = np.cumsum(weight * away)
        at = np.searchsorted(total, draw.random() * total[-1], side="right") if total[-1] > 0 else away.argmax()
        chosen.append(min(int(at), len(points) - 1))
        away = np.minimum(away, ((points - points[chosen[-1]]) ** 2).sum(1))
    return points[np.minimum(chosen, len(points) - 1)]
