"""k-means in JAX: several starts, the best kept."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32, PRNGKeyArray


class Clustering(NamedTuple):
    """k centroids, the nearest one of each point, and the sum of squared distances to it."""

    centroids: Float32[Array, "k e"]
    labels: Int32[Array, " n"]
    inertia: Float32[Array, ""]


def squared_distances(x: Float32[Array, "n e"], centroids: Float32[Array, "k e"]) -> Float32[Array, "n k"]:
    """‖x_i - c_j‖²."""
    return jnp.square(x[:, None] - centroids).sum(-1)


@partial(jax.jit, static_argnames=("k", "restarts", "steps"))
def kmeans(x: Float32[Array, "n e"], k: int, key: PRNGKeyArray, *, restarts: int = 10, steps: int = 100) -> Clustering:
    """Lloyd's algorithm from `restarts` k-means++ starts, the one of the lowest inertia; a centroid nobody is near stays.

    Args:
        x: points.   k: clusters, at most n.   key: a jax PRNG key.   restarts, steps: starts, and most steps of each.

    Source: Arthur and Vassilvitskii, "k-means++: the advantages of careful seeding", 2007.
    """
    every = jax.vmap(lambda key: _lloyd(x, _seeds(x, k, key), steps))(jax.random.split(key, restarts))
    best = jnp.argmin(every.inertia)
    return jax.tree.map(lambda y: y[best], every)


def _seeds(x: Float32[Array, "n e"], k: int, key: PRNGKeyArray) -> Float32[Array, "k e"]:
    """The first at random, each further one with a probability that grows with its squared distance to those before."""
    keys = jax.random.split(key, k)
    first = jnp.zeros((k, x.shape[1]), x.dtype).at[0].set(x[jax.random.randint(keys[0], (), 0, len(x))])

    def add(i, seeds):
        there = jnp.where(jnp.arange(k) < i, squared_distances(x, seeds), jnp.inf).min(1)
        return seeds.at[i].set(x[jax.random.categorical(keys[i], jnp.log(jnp.maximum(there, 1e-30)))])

    return lax.fori_loop(1, k, add, first)


def _lloyd(x: Float32[Array, "n e"], centroids: Float32[Array, "k e"], steps: int) -> Clustering:
    """Assign and average, until nothing moves."""

    def average(state):
        i, _, centroids = state
        mine = jax.nn.one_hot(squared_distances(x, centroids).argmin(1), len(centroids))
        count = mine.sum(0)[:, None]
        return i + 1, centroids, jnp.where(count > 0, mine.T @ x / jnp.maximum(count, 1), centroids)

    def moved(state):
        return (state[0] < steps) & (state[1] != state[2]).any()

    centroids = lax.while_loop(moved, average, (0, centroids + 1, centroids))[2]
    d = squared_distances(x, centroids)
    return Clustering(centroids, d.argmin(1).astype(jnp.int32), d.min(1).sum())
