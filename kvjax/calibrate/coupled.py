"""Codebooks of coupled channels: weighted k-means of contiguous channels, where the loss feels them most."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Float16

from kvjax.calibrate.codebooks import silent
from kvjax.calibrate.gradients import CacheGradients
from kvjax.calibrate.weighted_means import weighted_means


def fit_head(
    x: Float[np.ndarray, "n d"], gradient: Float[np.ndarray, "n d"], *, channels: int, bits: int, fisher: bool, **how: int
) -> Float16[np.ndarray, "m c e"]:
    """One head's codebooks, one for each `channels` contiguous channels."""
    parts = zip(*(np.split(y, y.shape[1] // channels, axis=1) for y in (x, gradient)), strict=True)
    fit = [weighted_means(a, (g**2).sum(1) if fisher else np.ones(len(a)), 1 << bits, **how) for a, g in parts]
    return np.stack(fit).astype(np.float16)


def coupled_codebooks(
    found: CacheGradients, *, channels: int, bits: int, fisher: bool = True, seed: int = 0, max_iter: int = 100,
    progress: Callable[[int, int], None] = silent,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Codebooks of 2^b centroids for every layer, KV head and `channels` contiguous channels.

    Args:
        channels: c, coupled in one code.   bits: b of it.
        fisher: whether a point weighs g·g, g the loss's gradient at it; else 1.
        seed, max_iter: of the k-means.   progress: called with (heads done, heads in all).

    Returns:
        "keys" (before the rotary embedding) and "values", float16 [l, h, d / c, 2^b, c].
    Source: Coupled Quantization, arXiv 2405.03917, section 3.
    """
    from joblib import Parallel, delayed  # of scikit-learn; slow to import, and needed here alone

    layers, heads = found.k.shape[:2]
    how = dict(channels=channels, bits=bits, fisher=fisher, seed=seed, max_iter=max_iter)
    sides = ((found.k, found.dk), (found.v, found.dv))
    tasks = (delayed(fit_head)(x[i], g[i], **how) for x, g in sides for i in np.ndindex(layers, heads))
    books = []
    for book in Parallel(n_jobs=-1, return_as="generator")(tasks):
        books.append(book)
        progress(len(books), 2 * layers * heads)
    keys, values = np.stack(books).reshape(2, layers, heads, *books[0].shape)
    return {"keys": keys, "values": values}
