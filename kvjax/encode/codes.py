"""Keys as codebook indices: a few bytes a slot, scored by table look-up (HCAttention)."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Float, UInt

from kvjax.encode.scored import scored_attention
from kvjax.encode.values import OnHost
from kvjax.kernels.codebook_scores import codebook_scores
from kvjax.stage import Encoder
from kvjax.types import Keys, Layer, table

#: Slots compared with the centroids at a time.
_BLOCK = 256


def nearest_centroids(k: Keys, codebook: Float[Array, "h m c e"]) -> Any:
    """P[j, i] = argmin_m ||k_j^(i) - C[i, m]||² over contiguous groups of channels, ties to the lower index; int32 [b h n m].

    k^(i) are d / m channels each; a codebook with m = 1 and fewer channels serves all groups.
    """
    b, h, n, d = k.shape
    e = codebook.shape[-1]
    book = codebook.astype(jnp.float32)
    half = 0.5 * (book**2).sum(-1)
    parts = k.astype(jnp.float32).reshape(b, h, n, d // e, e)
    rows_at_once = min(_BLOCK, n)
    blocks = -(-n // rows_at_once)
    parts = jnp.pad(parts, ((0, 0), (0, 0), (0, blocks * rows_at_once - n), (0, 0), (0, 0)))

    def block(i):
        rows = lax.dynamic_slice_in_dim(parts, i * rows_at_once, rows_at_once, axis=2)
        shared = jnp.broadcast_to(book, (h, d // e, *book.shape[2:]))
        near = jnp.einsum("bhnme,hmce->bhnmc", rows, shared, precision="highest") - half[None, :, None]
        return near.argmax(-1).astype(jnp.int32)

    found = lax.map(block, jnp.arange(blocks))
    return jnp.moveaxis(found, 0, 2).reshape(b, h, blocks * rows_at_once, d // e)[:, :, :n]


@struct.dataclass
class Codes(Encoder):
    """Keys as one centroid index a group of channels; values where `values` says.

    Args:
        codebook: [L, h, m, c, e] centroids by layer and KV head, m groups of e = d / m contiguous channels after the rotary
            embedding; [L, h, 1, c, e] where all groups share one codebook.
        origin: what the codebook was fitted on; two encoders of one origin are equal.
        values: where values live.

    Codes are uint8 for up to 256 centroids, else uint16. New keys are coded as they come, the newest included.
    Source: HCAttention, arXiv 2507.19823, section 3; equations 1 to 3.
    """

    padded: ClassVar[bool] = True
    codebook: Any = table()
    origin: str = struct.field(pytree_node=False, default="")
    values: Any = OnHost()

    @property
    def code_dtype(self) -> Any:
        """uint8 where that counts all centroids, else uint16."""
        return jnp.uint8 if self.codebook.shape[-2] <= 256 else jnp.uint16

    def at(self, layer: Layer) -> "Codes":
        return self.replace(codebook=self.codebook[layer])

    def check(self, model: Any, length: int, total: int) -> None:
        del length, total
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

    def keys(self, slots: int, d: int, dtype: Any) -> UInt[Array, "s m"]:
        del dtype
        return jnp.zeros((slots, d // self.codebook.shape[-1]), self.code_dtype)

    def encode(self, k: Keys) -> UInt[Array, "b h n m"]:
        return nearest_centroids(k, jnp.asarray(self.codebook)).astype(self.code_dtype)

    def decode(self, rows: UInt[Array, "b h n m"], dtype: Any) -> Keys:
        book = jnp.asarray(self.codebook)
        book = jnp.broadcast_to(book, (book.shape[0], rows.shape[-1], *book.shape[2:]))
        h, m = jnp.arange(book.shape[0])[:, None, None], jnp.arange(rows.shape[-1])
        return book[h, m, rows.astype(jnp.int32)].reshape(*rows.shape[:3], -1).astype(dtype)

    def scores(self, q, cache: Any, layer: int, *, positions, window: int | None, cap: int):
        where = (cache.pos, cache.start[layer], cache.length[layer], positions)
        return codebook_scores(q, cache.k, jnp.asarray(self.codebook), *where, cap=cap, window=window)

    def attention(self, q, cache: Any, layer: int, *, positions, window: int | None, cap: int):
        return scored_attention(self, q, cache, layer, positions=positions, window=window, cap=cap)
