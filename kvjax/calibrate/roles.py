"""What HeteroCache's heads are for: sets of important tokens, their overlaps, clusters, roles and shares.

Axis letters: s samples, t decode steps, l layers, h KV heads, n prompt positions.
"""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int, Int32

from kvjax.head_roles import ANCHOR, NAMES, PIVOT, SATELLITE, VOLATILE, is_full
from kvjax.score.pool import AvgPool
from kvjax.select.probable import most_probable
from kvjax.types import Function


def important(rows: Float32[Array, "*x n"], k: int, pool: Function = AvgPool(5)) -> Bool[Array, "*x n"]:
    """K(a) = topk(pool(a), min(k, n)) as a mask; ties to the lower position."""
    size = jnp.full(rows.shape[:-1], min(k, rows.shape[-1]), jnp.int32)
    return most_probable(pool(rows), size, jnp.ones(rows.shape, bool))


def overlap(one: Bool[Array, "*#x n"], two: Bool[Array, "*#x n"]) -> Float32[Array, "*x"]:
    """O = |K1 ∩ K2| / min(|K1|, |K2|), 0 if a set is empty."""
    smaller = jnp.minimum(one.sum(-1), two.sum(-1))
    return (one & two).sum(-1) / jnp.maximum(smaller, 1).astype(jnp.float32)


def pairwise(sets: Bool[Array, "*x h n"]) -> Float32[Array, "*x h h"]:
    """O(h, h') of all pairs of KV heads of a layer."""
    return overlap(sets[..., :, None, :], sets[..., None, :, :])


def stability(overlaps: Float[np.ndarray, "s t l h"]) -> Float[np.ndarray, "l h"]:
    """S_stab = median_t mean_s O(a_t, a_0), t = 1 .. T; an even T takes the mean of the two middle values."""
    return np.median(np.mean(overlaps.astype(np.float64), axis=0), axis=0)


@struct.dataclass
class AtPrefill:
    """Pairs are compared at the last prompt query, averaged over samples: reproduces the published artefacts."""

    steps = False

    def __call__(self, pairs: Float[np.ndarray, "s t l h h2"]) -> Float[np.ndarray, "l h h2"]:
        return pairs[:, 0].astype(np.float64).mean(0)


@struct.dataclass
class MedianOverSteps:
    """Pairs are compared at every decode step, median_t of the mean over samples."""

    steps = True

    def __call__(self, pairs: Float[np.ndarray, "s t l h h2"]) -> Float[np.ndarray, "l h h2"]:
        return np.median(pairs[:, 1:].astype(np.float64).mean(0), axis=0)


def star_clusters(edges: Bool[np.ndarray, "h h"]) -> Int32[np.ndarray, " h"]:
    """Greedy star clusters of one layer: the index of its pivot for each pivot and satellite, -1 for heads left over.

    The head with most free neighbours (ties: the lower index) takes them all, again and again until no free head has one.
    Source: HeteroCache, arXiv 2601.13684, appendix C.2.
    """
    cluster, free = np.full(len(edges), -1, np.int32), np.ones(len(edges), bool)
    near = edges & ~np.eye(len(edges), dtype=bool)
    while True:
        degree = np.where(free, (near & free).sum(1), 0)
        pivot = int(degree.argmax())
        if not degree[pivot]:
            return cluster
        members = near[pivot] & free
        members[pivot] = True
        cluster[members] = pivot
        free &= ~members


def roles(cluster: Int[np.ndarray, "l h"], stable: Float[np.ndarray, "l h"], theta: float) -> Int[np.ndarray, "l h"]:
    """Pivots and satellites by the clustering; of the heads left over, anchors where S_stab >= theta, else volatile."""
    left = np.where(stable >= theta, ANCHOR, VOLATILE)
    own = cluster == np.arange(cluster.shape[1])
    return np.where(own, PIVOT, np.where(cluster >= 0, SATELLITE, left)).astype(np.int8)


def alloc_ratio(
    role: Int[np.ndarray, "l h"], stable: Float[np.ndarray, "l h"], *, eps: float = 1e-6, least: float = 0.0
) -> Float32[np.ndarray, "l h"]:
    """r = |C| w / Σ_C w, w = 1 / (max(S_stab, least) + eps), over the compressed heads of all layers; -1 for full heads.

    A head with S_stab = 0 takes nearly all unless `least` (1/k, say) bounds it from below.
    """
    compressed = ~is_full(role)
    w = np.where(compressed, 1 / (np.maximum(stable.astype(np.float64), least) + eps), 0.0)
    return np.where(compressed, compressed.sum() * w / max(w.sum(), np.finfo(float).tiny), -1.0).astype(np.float32)


def tables(
    stable: Float[np.ndarray, "l h"], similar: Float[np.ndarray, "l h h2"], *, theta_stab: float = 0.5, theta_sim: float = 0.5,
    least: float = 0.0,
) -> dict[str, np.ndarray]:  # fmt: skip
    """The artefact's tables from measured stabilities and pairwise similarities.

    Returns:
        role int8, alloc_ratio float32 (-1 for full heads), stability float32, cluster int32 (the pivot's head, -1: none), all
        [l, h]. Two heads share an edge where their similarity is at least theta_sim.
    """
    cluster = np.stack([star_clusters(layer >= theta_sim) for layer in similar]).astype(np.int32)
    role = roles(cluster, stable, theta_stab)
    ratio = alloc_ratio(role, stable, least=least)
    return dict(role=role, alloc_ratio=ratio, stability=stable.astype(np.float32), cluster=cluster)


def counts(role: Int[np.ndarray, "l h"]) -> dict[str, int]:
    """How many heads play each role."""
    return {name: int((role == number).sum()) for number, name in NAMES.items()}
