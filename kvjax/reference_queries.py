"""What reference queries see of a head's keys, all of them at once (Attention Matching)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, PyTree

from kvjax.evidence import Evidence, Need


@struct.dataclass
class Seen:
    """Of one KV head, m queries over n keys.

    Attributes:
        z: q k / sqrt(d), -inf at slots that hold nothing.
        e: exp(z - its row's maximum), 0 in rows that are no query.   total: its row sums.
        p: e / total.   real: which rows are queries.
    """

    z: Float32[Array, "m n"]
    e: Float32[Array, "m n"]
    total: Float32[Array, " m"]
    p: Float32[Array, "m n"]
    real: Bool[Array, " m"]


def look(q: Float[Array, "m d"], k: Float[Array, "n d"], valid: Bool[Array, " n"]) -> Seen:
    """Every query over every valid key, whatever their positions. A query of zeros is none."""
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    z = jnp.matmul(q, k.T, precision="highest") / math.sqrt(q.shape[-1])
    z = jnp.where(valid, z, -jnp.inf)
    real = (q != 0).any(-1)
    e = jnp.where(real[:, None], jnp.exp(z - z.max(-1, keepdims=True)), 0.0)
    total = e.sum(-1)
    return Seen(z=z, e=e, total=total, p=e / jnp.maximum(total, 1e-30)[:, None], real=real)


def recorded(queries: Need, evidence: Evidence) -> Float[Array, "b h m d"]:
    """The queries a need has recorded, those of a group's heads one after the other."""
    q = queries.serve(evidence.of(queries), queries)
    return q.reshape(*q.shape[:2], -1, q.shape[-1])


def by_head(f: Callable, *xs: PyTree) -> PyTree:
    """f of every KV head of every row, one after another: its rows of queries are alive for one head at a time."""
    shape = jax.tree.leaves(xs)[0].shape[:2]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), xs)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), lax.map(lambda x: f(*x), flat))
