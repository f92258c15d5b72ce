"""Codebook indices: a few bytes a slot, keys scored by table look-up (HCAttention)."""

from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int32, PyTree, UInt

from kvjax.codec.codec import Codec
from kvjax.codec.decoded import biased
from kvjax.codec.layer_regions import LayerRegions
from kvjax.kernels.codebook_scores import codebook_scores
from kvjax.protocols import Decoder
from kvjax.types import Keys, Layer, Queries, Table, table

#: Slots compared with the centroids at a time.
_BLOCK = 256
#: Channels of a group up to which a CPU compares centroid by centroid, and centroids in one pass of that loop.
_NARROW, _UNROLL = 16, 8


def nearest_centroids(k: Keys, codebook: Float[Array, "h _ c e"]) -> Int32[Array, "b h n m"]:
    """P[j, i] = argmin_m ||k_j^(i) - C[i, m]||² over contiguous groups of channels, ties to the lower index.

    k^(i) are d / m channels each; a codebook with m = 1 and fewer channels serves all groups. That is the greatest
    k·C - ||C||²/2.
    """
    b, h, n, d = k.shape
    e, rows = codebook.shape[-1], min(_BLOCK, n)
    book = jnp.broadcast_to(codebook.astype(jnp.float32), (h, d // e, *codebook.shape[2:]))
    blocks = -(-n // rows)
    parts = jnp.pad(lax.stop_gradient(k).astype(jnp.float32), ((0, 0), (0, 0), (0, blocks * rows - n), (0, 0)))
    parts = jnp.moveaxis(parts.reshape(b, h, blocks, rows, d // e, e), 2, 0)
    find = _by_product
    if rows == _BLOCK and e <= _NARROW:
        find = partial(lax.platform_dependent, cpu=_by_centroid, default=_by_product)
    found = lax.map(lambda part: find(part, book), parts)
    return jnp.moveaxis(found, 0, 2).reshape(b, h, blocks * rows, d // e)[:, :, :n]


def _by_product(part: Float[Array, "b h n m e"], book: Float[Array, "h m c e"]) -> Int32[Array, "b h n m"]:
    half = 0.5 * (book**2).sum(-1)
    near = jnp.einsum("bhnme,hmce->bhnmc", part, book, precision="highest") - half[None, :, None]
    return near.argmax(-1).astype(jnp.int32)


def _by_centroid(part: Float[Array, "b h n m e"], book: Float[Array, "h m c e"]) -> Int32[Array, "b h n m"]:
    """The same in a loop that remembers the nearest so far: on a CPU twenty times faster than a product with few channels."""
    half = 0.5 * (book**2).sum(-1)
    channels = jnp.transpose(part, (4, 0, 1, 3, 2))

    def compare(i, best):
        most, where = best
        near = sum(x * book[None, :, :, i, c, None] for c, x in enumerate(channels)) - half[None, :, :, i, None]
        nearer = near > most
        return jnp.where(nearer, near, most), jnp.where(nearer, i, where)

    nothing = jnp.full(channels.shape[1:], -jnp.inf), jnp.zeros(channels.shape[1:], jnp.int32)
    return jnp.swapaxes(lax.fori_loop(0, book.shape[2], compare, nothing, unroll=_UNROLL)[1], 2, 3)


@struct.dataclass
class ProductQuantized(Codec):
    """One centroid index a group of channels.

    Args:
        codebook: [L, h, m, c, e] centroids by layer and KV head, m groups of e = d / m contiguous channels after the rotary
            embedding; [L, h, 1, c, e] where all groups share one codebook.
        origin: what the codebook was fitted on; two codecs of one origin are equal.

    Codes are uint8 for up to 256 centroids, else uint16. New keys are coded as they come, the newest included.
    Source: HCAttention, arXiv 2507.19823, section 3; equations 1 to 3.
    """

    codebook: Table = table()
    origin: str = struct.field(pytree_node=False, default="")

    @property
    def code_dtype(self) -> PyTree:
        """uint8 where that counts all centroids, else uint16."""
        return jnp.uint8 if self.codebook.shape[-2] <= 256 else jnp.uint16

    def at(self, layer: Layer) -> "ProductQuantized":
        return self.replace(codebook=self.codebook[layer])

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        del length, mean_budget
        layers, heads, m, c, e = np.shape(self.codebook)
        if (layers, heads) != (model.layers, model.heads):
            raise ValueError(
                f"the codebooks are for {layers} layers of {heads} KV heads, the model has {model.layers} of {model.heads}: "
                "fit codebooks for this model with `kvjax calibrate hcattention`"
            )
        if model.head_dim % e or m not in (1, model.head_dim // e):
            raise ValueError(f"codebooks of {m} groups of {e} channels do not make the model's head dimension {model.head_dim}")
        if c > 1 << 16:
            raise ValueError(f"codes are at most 16 bits: {c} centroids are too many")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> UInt[Array, "s m"]:
        del dtype
        return jnp.zeros((slots, d // self.codebook.shape[-1]), self.code_dtype)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> UInt[Array, "b h n m"]:
        del pos, params
        return nearest_centroids(x, jnp.asarray(self.codebook)).astype(self.code_dtype)

    def decode(self, rows: UInt[Array, "b h n m"], dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        book = jnp.asarray(self.codebook)
        book = jnp.broadcast_to(book, (book.shape[0], rows.shape[-1], *book.shape[2:]))
        h, m = jnp.arange(book.shape[0])[:, None, None], jnp.arange(rows.shape[-1])
        return book[h, m, rows.astype(jnp.int32)].reshape(*rows.shape[:3], -1).astype(dtype)

    def scores(self, q: Queries, at: LayerRegions, params: PyTree = ()):
        del params
        where = (at.pos, at.start, at.length, at.positions)
        scores = codebook_scores(q, at.pool, jnp.asarray(self.codebook), *where, cap=at.padded_slots, window=at.window)
        return biased(scores, at.bias, at.start)
