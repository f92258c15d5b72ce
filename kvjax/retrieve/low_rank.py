"""A prompt's keys as a product of two factors, and the chunks that stand for it (ShadowKV)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.kernels.compact import first
from kvjax.kernels.select_top import select_top
from kvjax.kernels.select_top.order import ordered
from kvjax.types import Keys, Number


@struct.dataclass
class Shadow:
    """What of one layer stays on the device beside the pool. Axis letters: m chunks, r the rank.

    Attributes:
        u: left factor, un-rotated keys of all KV heads side by side ≈ u · sv.   sv: right factor, by head.
        landmarks: mean rotated keys of the chunks that are elsewhere.   ids: which chunks those are, ascending.
        count: how many.
    """

    u: Float[Array, "b n r"]
    sv: Float[Array, "b h r d"]
    landmarks: Float[Array, "b h m d"]
    ids: Int32[Array, "b h m"]
    count: Int32[Array, "b h"]


def factors(k_raw: Keys, valid: Bool[Array, "b n"], rank: int) -> tuple[Float[Array, "b n r"], Float[Array, "b h r d"]]:
    """The truncated singular value decomposition of keys before rotation, [n, h·d] ≈ U S · Vᵀ; padded with zeros up to `rank`."""
    b, h, n, d = k_raw.shape
    side = jnp.where(valid[..., None], jnp.swapaxes(k_raw, 1, 2).reshape(b, n, h * d).astype(jnp.float32), 0.0)
    u, s, vt = jnp.linalg.svd(side, full_matrices=False)
    more = max(rank - s.shape[-1], 0)
    left = jnp.pad((u * s[:, None])[..., :rank], ((0, 0), (0, 0), (0, more)))
    right = jnp.pad(vt[:, :rank], ((0, 0), (0, more), (0, 0)))
    return left.astype(k_raw.dtype), jnp.swapaxes(right.reshape(b, rank, h, d), 1, 2).astype(k_raw.dtype)


def chunk_means(k: Keys, size: int) -> tuple[Float32[Array, "b h m d"], Float32[Array, "b h m"]]:
    """Mean key of each chunk of `size` tokens, and the least cosine that one of them has with it; one at least, zeros behind."""
    k = jnp.pad(k, ((0, 0), (0, 0), (0, max(0, size - k.shape[2])), (0, 0)))
    b, h, n, d = k.shape
    chunks = k[:, :, : n // size * size].reshape(b, h, -1, size, d).astype(jnp.float32)
    mean = chunks.mean(3)
    norms = jnp.linalg.norm(chunks, axis=-1) * jnp.linalg.norm(mean, axis=-1)[..., None]
    return mean, (jnp.einsum("bhmsd,bhmd->bhms", chunks, mean, precision="highest") / jnp.maximum(norms, 1e-12)).min(-1)


def chunks_away(length: Int32[Array, " b"], size: int, local: int) -> Int32[Array, " b"]:
    """Whole chunks before the last `local` ones and what is behind the last whole one."""
    return jnp.maximum(length // size - local, 0)


def outlier_chunks(cosine: Float32[Array, "b h m"], length: Int32[Array, " b"], *, size: int, local: int, many: int):
    """The `many` chunks of least cosine, and those that may be elsewhere, outliers included: bool [b h m] both."""
    real = jnp.broadcast_to(jnp.arange(cosine.shape[-1]) < chunks_away(length, size, local)[:, None, None], cosine.shape)
    rank = jnp.where(real, ordered(-cosine), jnp.uint32(0))
    return select_top(rank, jnp.full(cosine.shape[:2], many, jnp.int32)), real


@partial(jax.jit, static_argnames=("size", "local", "many"))
def away_tokens(k: Keys, length: Int32[Array, " b"], *, size: int, local: int, many: int) -> Bool[Array, "b h n"]:
    """Tokens of chunks that are neither outliers nor among the last."""
    _, cosine = chunk_means(k, size)
    outlier, real = outlier_chunks(cosine, length, size=size, local=local, many=many)
    tokens = jnp.repeat(real & ~outlier, size, axis=-1)[:, :, : k.shape[2]]
    return jnp.pad(tokens, ((0, 0), (0, 0), (0, k.shape[2] - tokens.shape[2])))


@partial(jax.jit, static_argnames=("size", "local", "many", "rank"))
def shadow(k: Keys, k_raw: Keys, length: Int32[Array, " b"], *, size: int, local: int, many: int, rank: int) -> Shadow:
    """One layer's factors and landmarks."""
    mean, cosine = chunk_means(k, size)
    outlier, real = outlier_chunks(cosine, length, size=size, local=local, many=many)
    away = real & ~outlier
    ids = first(away)
    u, sv = factors(k_raw, jnp.arange(k.shape[2]) < length[:, None], rank)
    landmarks = jnp.take_along_axis(mean, ids[..., None], 2).astype(k.dtype)
    return Shadow(u=u, sv=sv, landmarks=landmarks, ids=ids, count=away.sum(-1, dtype=jnp.int32))


def landmark_worth(
    q: Float[Array, "b h g d"], landmarks: Float[Array, "b h m d"], count: Int32[Array, "b h"], scale: Number
) -> Float32[Array, "b h m"]:
    """u = max_g softmax_m(scale · q_g · landmark_m): heads of a group are compared after their softmax."""
    z = scale * jnp.einsum("bhgd,bhmd->bhgm", q.astype(jnp.float32), landmarks.astype(jnp.float32), precision="highest")
    z = jnp.where(jnp.arange(z.shape[-1]) < count[..., None, None], z, -jnp.inf)
    return jnp.where(count[..., None] > 0, jax.nn.softmax(z, -1).max(2), 0.0)


def rebuilt(u: Float[Array, "b n r"], sv: Float[Array, "b h r d"], at: Int32[Array, "b h k"]) -> Float[Array, "b h k d"]:
    """Keys before rotation of tokens at these positions: U[at] · SV_h."""
    rows = jax.vmap(lambda u, at: u[at])(u, at)
    out = jnp.einsum("bhkr,bhrd->bhkd", rows.astype(jnp.float32), sv.astype(jnp.float32), precision="highest")
    return out.astype(u.dtype)
