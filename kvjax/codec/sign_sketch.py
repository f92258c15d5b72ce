"""Sign sketches: one bit for each of a few random projections, and the norm (QJL)."""

import math
from functools import cache

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float16, Float32, Int32, PyTree, UInt8

from kvjax.codec.bit_stream import pack_bits, unpack_bits
from kvjax.codec.codec import Codec
from kvjax.codec.uniform import whole_bytes
from kvjax.protocols import Decoder
from kvjax.types import Keys, Leaf


@struct.dataclass
class SketchRows:
    """sign: [.., m / 8] bytes.   norm: [..] of each token.   Or their shapes."""

    sign: UInt8[Array, "*n w"] | Leaf
    norm: Float16[Array, "*n"] | Leaf


@cache
def projections(seed: int, m: int, d: int, orthogonal: bool) -> Float[np.ndarray, "m d"]:
    """S: rows of N(0, 1); or d at a time orthogonal to each other, and sqrt(d) long. Float64."""
    s = np.random.Generator(np.random.PCG64(seed)).standard_normal((m, d))
    if not orthogonal:
        return s
    parts = [np.linalg.qr(s[at : at + d].T) for at in range(0, m, d)]
    return math.sqrt(d) * np.concatenate([(q * np.sign(np.diag(r))).T for q, r in parts])


@struct.dataclass
class SignSketch(Codec):
    """x ≈ sqrt(π/2) / m · ||x|| · Sᵀ sign(S x), whose product with any q is q·x on average over S.

    Args:
        ratio: m / d, projections a channel.
        seed: of S, the same in every layer and head.
        orthogonal: whether rows of S are made orthogonal and sqrt(d) long, d at a time.

    Takes m / d + 16 / d bits a number. A zero stays zero; a projection of 0 counts as positive.
    Source: QJL, arXiv 2406.03482, section 3; orthogonal rows as in its release.
    Raises: ValueError for a ratio below 1; for head dimensions whose signs do not fill bytes, when compressing.
    """

    ratio: int = struct.field(pytree_node=False, default=2)
    seed: int = struct.field(pytree_node=False, default=0)
    orthogonal: bool = struct.field(pytree_node=False, default=True)

    def __post_init__(self):
        if self.ratio < 1:
            raise ValueError(f"a sketch has 1 projection a channel or more; got ratio={self.ratio}")

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        del length, mean_budget
        whole_bytes(model.head_dim * self.ratio)

    def matrix(self, d: int) -> Float32[Array, "m d"]:
        """S."""
        return jnp.asarray(projections(self.seed, self.ratio * d, d, self.orthogonal), jnp.float32)

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> SketchRows:
        del dtype
        return SketchRows(jnp.zeros((slots, self.ratio * d // 8), jnp.uint8), jnp.zeros(slots, jnp.float16))

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> SketchRows:
        del pos, params
        x = x.astype(jnp.float32)
        found = jnp.matmul(x, self.matrix(x.shape[-1]).T, precision="highest") >= 0
        return SketchRows(pack_bits(found.astype(jnp.int32), 1), jnp.sqrt((x**2).sum(-1)).astype(jnp.float16))

    def decode(self, rows: SketchRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        m = rows.sign.shape[-1] * 8
        sign = 2.0 * unpack_bits(rows.sign, m, 1).astype(jnp.float32) - 1.0
        direction = jnp.matmul(sign, self.matrix(m // self.ratio), precision="highest")
        return (math.sqrt(math.pi / 2) / m * rows.norm.astype(jnp.float32)[..., None] * direction).astype(dtype)
