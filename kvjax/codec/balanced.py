"""Channels of keys scaled before they are coded, by what queries make of them (MiKV)."""

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.codec.affine import Affine
from kvjax.codec.codec import Codec
from kvjax.evidence import Evidence, Need, QueryMax
from kvjax.protocols import Decoder
from kvjax.types import Keys, Layer, Mask


def balancer(q_max: Float32[Array, "b h d"], k: Float[Array, "b h n d"], real: Mask) -> Float32[Array, "b h d"]:
    """b_c = sqrt(max_t |q_tc| / max_t |k_tc|) over the real tokens; 1 for a channel that is 0 in all keys, or in all queries."""
    k_max = jnp.where(real[..., None], jnp.abs(k.astype(jnp.float32)), 0.0).max(2)
    ratio = q_max / jnp.where(k_max > 0, k_max, 1.0)
    return jnp.where((k_max > 0) & (ratio > 0), jnp.sqrt(ratio), 1.0)


@struct.dataclass
class Balanced(Codec):
    """b ⊙ k coded by `inner`: q·k = (q ⊘ b)·(b ⊙ k), and channels that queries care about get more of the range.

    Args:
        inner: the codec of balanced keys, one that codes each token by itself.

    b is fitted on each prompt, on all its tokens, d numbers of 32 bits for each layer, row and KV head, and stays for what follows.
    Source: MiKV, arXiv 2402.18096, equations 2 to 4; under grouped queries the largest |q| of the group counts.
    Raises: ValueError for a codec of pages, of all heads together, or one that is fitted on each prompt.
    """

    inner: Codec = Affine()

    def __post_init__(self):
        inner = self.inner
        if isinstance(inner, Codec) and (inner.page > 1 or inner.fitted or inner.across_heads):
            raise ValueError(f"balanced keys are coded token by token, by a codec that no prompt fits; got {inner!r}")

    def at(self, layer: Layer) -> "Balanced":
        return self.replace(inner=self.inner.at(layer))

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({QueryMax()})

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.inner.check(model, length, mean_budget)

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> PyTree:
        return self.inner.rows(slots, d, dtype)

    def fit_to(self, x: Keys, valid: Mask, stays: Mask, evidence: Evidence) -> Float32[Array, "b h d"]:
        del stays
        real = jnp.broadcast_to(jnp.arange(x.shape[2]) < evidence.length[:, None, None], valid.shape)
        return balancer(evidence.of(QueryMax()), x, real)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> PyTree:
        return self.inner.encode(x.astype(jnp.float32) * params[:, :, None], pos)

    def decode(self, rows: PyTree, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        return (self.inner.decode(rows, jnp.float32) / params[:, :, None]).astype(dtype)
