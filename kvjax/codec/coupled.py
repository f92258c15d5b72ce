"""Contiguous channels coded together, their codes one behind the other (Coupled Quantization)."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int32, PyTree, UInt8

from kvjax.codec.bit_stream import pack_bits, stream_bytes, unpack_bits
from kvjax.codec.codec import Codec
from kvjax.codec.layer_regions import LayerRegions
from kvjax.codec.product_quantized import ProductQuantized, nearest_centroids
from kvjax.protocols import Decoder
from kvjax.types import Keys, Queries


@struct.dataclass
class Coupled(ProductQuantized):
    """The nearest centroid of every e contiguous channels, b = log2 of the centroids bits each: b / e bits a number.

    Args:
        codebook: [L, h, d / e, 2^b, e] centroids; of keys as they are stored, so that keys before the rotary embedding need
            `positions=Unrotated()`.
        origin: what the codebook was fitted on; two codecs of one origin are equal.

    Source: Coupled Quantization, arXiv 2405.03917, section 3.
    Raises: ValueError for codebooks of another model, or whose codes do not fill bytes, when compressing.
    """

    @property
    def bits(self) -> int:
        """b."""
        return (np.shape(self.codebook)[-2] - 1).bit_length()

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        layers, heads, m, _, e = np.shape(self.codebook)
        if (layers, heads, m * e) != (model.layers, model.heads, model.head_dim):
            raise ValueError(
                f"the codebooks are for {layers} layers of {heads} KV heads of {m * e} channels, the model has {model.layers} of "
                f"{model.heads} of {model.head_dim}: fit codebooks for it with `kvjax calibrate coupled_quantization`"
            )
        if m * self.bits % 8:
            raise ValueError(f"{m} codes of {self.bits} bits do not fill bytes: choose another number of channels or bits")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> UInt8[Array, "s w"]:
        del dtype
        return jnp.zeros((slots, stream_bytes(d // np.shape(self.codebook)[-1], self.bits)), jnp.uint8)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> UInt8[Array, "b h n w"]:
        del pos, params
        return pack_bits(nearest_centroids(x, jnp.asarray(self.codebook)), self.bits)

    def decode(self, rows: UInt8[Array, "b h n w"], dtype: DTypeLike, params: PyTree = ()) -> Keys:
        codes = unpack_bits(rows, np.shape(self.codebook)[-3], self.bits)
        return ProductQuantized.decode(self, codes.astype(self.code_dtype), dtype, params)

    def scores(self, q: Queries, at: LayerRegions, params: PyTree = ()) -> Float32[Array, "b h g t n"]:
        return Codec.scores(self, q, at, params)
