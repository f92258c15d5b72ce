"""Codebooks of keys: mini-batch k-means for each layer, KV head and group of channels (HCAttention)."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel


def silent(done: int, total: int) -> None:
    """Report nothing."""


def collect_keys(lm: LanguageModel, prompts: Sequence[Sequence[int]]) -> Float[np.ndarray, "l h n d"]:
    """Rotated keys of every token of the prompts, float32, one prompt behind the other."""
    found = []
    for ids in prompts:
        (row,) = prefill(lm, list(ids), needs=frozenset()).rows
        found.append(np.stack([np.asarray(k[0, :, : len(ids)], np.float32) for k in row.k]))
    return np.concatenate(found, 2)


def fit(points: Float[np.ndarray, "n e"], centroids: int, *, seed: int, max_iter: int, batch: int) -> Float[np.ndarray, "c e"]:
    """C = argmin Σ_j min_m ||x_j - C_m||²: mini-batch k-means from k-means++ seeds; never a NaN.

    With fewer distinct points than centroids every point gets its own and the rest are copies of the first, which the lower-index
    rule of the nearest centroid never chooses. A centroid nothing is nearest to is moved to the point that is worst served.
    """
    from sklearn.cluster import MiniBatchKMeans

    distinct = np.unique(points, axis=0)
    if len(distinct) <= centroids:
        return np.concatenate([distinct, np.repeat(distinct[:1], centroids - len(distinct), axis=0)])
    how = dict(batch_size=batch, max_iter=max_iter, n_init=1, random_state=seed)
    found = MiniBatchKMeans(centroids, init="k-means++", **how).fit(points).cluster_centers_
    return reseeded(found.astype(np.float32), points)


def squared_distances(points: np.ndarray, book: np.ndarray) -> np.ndarray:
    """||x_j - C_m||², float32 [n, c], up to what is the same for all m."""
    return (book**2).sum(1) - 2 * points @ book.T


def reseeded(book: Float[np.ndarray, "c e"], points: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "c e"]:
    """The codebook with every empty centroid moved to one of the points farthest from theirs."""
    distance = squared_distances(points, book)
    empty = np.setdiff1d(np.arange(len(book)), distance.argmin(1))
    worst = np.argsort(-(distance.min(1) + (points**2).sum(1)), kind="stable")[: len(empty)]
    book[empty[: len(worst)]] = points[worst]
    return book


def inertia(points: Float[np.ndarray, "n e"], book: Float[np.ndarray, "c e"]) -> float:
    """Σ_j min_m ||x_j - C_m||²."""
    return float(np.maximum(squared_distances(points, book).min(1) + (points**2).sum(1), 0).sum())


def fit_codebooks(
    keys: Float[np.ndarray, "l h n d"], *, groups: int, centroids: int, shared: bool = False, seed: int = 0, max_iter: int = 200,
    batch: int = 10_000, progress: Callable[[int, int], None] = silent,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Codebooks of `centroids` for each layer, KV head and group of d / groups contiguous channels.

    Args:
        keys: rotated keys (`collect_keys`).
        groups: parts a key is cut into ("group size" in the paper's tables).   centroids: of a codebook.
        shared: whether one codebook, fitted on the parts of all groups, serves them all.
        seed, max_iter, batch: of the k-means.   progress: called with (heads done, heads in all).

    Returns:
        "codebook" float16 [l, h, groups or 1, c, d / groups]; "inertia" and "energy" float32 [l, h]: the squared error left, and
        the keys' squared norms.

    Raises:
        ValueError: groups that do not divide the head dimension, centroids beyond 16 bits.
    Source: HCAttention, arXiv 2507.19823, section 3 and 4.1 (200 iterations, batches of 10,000). The released text is silent on the
    start; ours is k-means++ with a fixed seed.
    """
    layers, heads, n, d = keys.shape
    if d % groups or not 1 <= centroids <= 1 << 16:
        raise ValueError(f"groups must divide the head dimension {d}, and centroids be 1 to 65536; got {groups} and {centroids}")
    if n * (groups if shared else 1) < 10 * centroids:
        warnings.warn(f"{n} keys are few for {centroids} centroids: give at least {10 * centroids}", stacklevel=2)
    from joblib import Parallel, delayed  # of scikit-learn; slow to import, and needed here alone

    how = dict(centroids=centroids, groups=groups, shared=shared, seed=seed, max_iter=max_iter, batch=batch)
    tasks = (delayed(fit_head)(keys[i], **how) for i in np.ndindex(layers, heads))
    found = []
    for fitted in Parallel(n_jobs=-1, return_as="generator")(tasks):
        found.append(fitted)
        progress(len(found), layers * heads)
    books, lost = zip(*found, strict=True)
    energy = (keys**2).sum((2, 3), dtype=np.float64).astype(np.float32)
    lost = np.asarray(lost, np.float32).reshape(layers, heads)
    return {"codebook": np.stack(books).reshape(layers, heads, *books[0].shape), "inertia": lost, "energy": energy}


def fit_head(
    keys: Float[np.ndarray, "n d"], *, centroids: int, groups: int, shared: bool, **how: int
) -> tuple[Float[np.ndarray, "m c e"], float]:
    """The codebooks of one head's keys, float16, and the squared error they leave."""
    n = keys.shape[0]
    parts = keys.reshape(n, groups, -1).swapaxes(0, 1)
    parts = np.ascontiguousarray(parts.reshape(1, n * groups, -1) if shared else parts)
    books = np.stack([fit(points, centroids, **how) for points in parts]).astype(np.float16)
    return books, sum(inertia(points, book.astype(np.float32)) for points, book in zip(parts, books, strict=True))
