"""Prefill attention as its formula reads: every score at once. For tests and for small prompts."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

#: Keys that are summed at once.
BLOCK = 32


@partial(jax.jit, static_argnames="window")
def attention(q: Float[Array, "b h g t d"], k: Float[Array, "b h n d"], v: Float[Array, "b h n d"], offset, *, window):
    """Definition of `api.prefill_attention`."""
    out, lse = attended(_scores(q, k, offset, window), v)
    return out.astype(q.dtype), lse


def attended(scores: Float[Array, "b h g t n"], v: Float[Array, "b h n d"]) -> tuple[Array, Array]:
    """(out, lse) of queries with these scores, float32."""
    high = scores.max(axis=-1)
    weights = jnp.exp(scores - high[..., None])
    total = weights.sum(axis=-1)
    return _mixed(weights, v.astype(jnp.float32)) / total[..., None], high + jnp.log(total)


def _mixed(weights: Float[Array, "b h g t n"], v: Float[Array, "b h n d"]) -> Float[Array, "b h g t d"]:
    """Σ_j weights_j v_j, block by block: how exact one long sum of float32 is depends on the processor's product."""
    b, h, n, d = v.shape
    extra = -n % BLOCK
    weights = jnp.pad(weights, [(0, 0)] * 4 + [(0, extra)]).reshape(*weights.shape[:4], -1, BLOCK)
    v = jnp.pad(v, [(0, 0), (0, 0), (0, extra), (0, 0)]).reshape(b, h, -1, BLOCK, d)
    return jnp.einsum("bhgtcn,bhcnd->bhgtcd", weights, v, precision="highest").sum(axis=-2)


@partial(jax.jit, static_argnames="window")
def column_sums(q, k, lse, offset, length, *, window) -> Float[Array, "b h g n"]:
    """Definition of `api.column_sums`."""
    weights = jnp.exp(_scores(q, k, offset, window) - lse[..., None])
    counted = offset + jnp.arange(q.shape[3])[None, :] < length[:, None]
    weights = jnp.where(counted[:, None, None, :, None], weights, 0.0)
    return weights.sum(axis=3)


def attention_and_column_sums(q, k, v, offset, length, *, window) -> tuple[Array, Array, Array]:
    """Definition of `api.attention_and_column_sums`."""
    out, lse = attention(q, k, v, offset, window=window)
    return out, lse, column_sums(q, k, lse, offset, length, window=window)


def _scores(q, k, offset, window) -> Float[Array, "b h g t n"]:
    """Scaled products, -inf where the query does not see the key."""
    row = offset + jnp.arange(q.shape[3])[:, None]
    col = jnp.arange(k.shape[2])[None, :]
    seen = col <= row if window is None else (col <= row) & (col > row - window)
    return jnp.where(seen, products(q, k), -jnp.inf)


def products(q: Float[Array, "b h g t d"], k: Float[Array, "b h n d"]) -> Float[Array, "b h g t n"]:
    """q · k / sqrt(d) of every pair, in float32."""
    scores = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), k.astype(jnp.float32), precision="highest")
    return scores / math.sqrt(q.shape[-1])
