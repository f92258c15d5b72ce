"""What a sparse index makes a prompt's attention compute."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from kvjax.kernels import sparse_attention as op
from kvjax.prefill.sparse_index import SparseIndex
from kvjax.types import Keys, Queries, Values


def sparse_attention(
    q: Queries, k: Keys, v: Values, index: SparseIndex, *, offset: Int32[Array, ""]
) -> tuple[Queries, Float32[Array, "b h g t"]]:
    """(out, lse) of queries from position `offset`, a multiple of 64, on, each over the keys that `index` lets it see."""
    chosen = op.Chosen(columns=listed(index), offsets=index.offsets, blocks=index.blocks)
    return op.sparse_attention(q, k, v, chosen, offset=offset)


def listed(index: SparseIndex) -> Int32[Array, "b h g m"]:
    """The chosen columns of each query head, ascending, n after them."""
    *heads, n = index.columns.shape

    def places(columns):
        return jnp.nonzero(columns, size=index.most, fill_value=n)[0].astype(jnp.int32)

    return jax.vmap(places)(index.columns.reshape(-1, n)).reshape(*heads, index.most)


def computed_tiles(index: SparseIndex, offset: Int32[Array, ""], count: Int32[Array, " b"]) -> tuple[Array, Array]:
    """(tiles computed, tiles under the diagonal), int32 [b h g] each, of the query blocks that hold a real query."""
    i = jnp.arange(index.blocks.shape[3], dtype=jnp.int32)
    real = (i * op.BLOCK < count[:, None])[:, None, None]
    whole = op.tiles(index.offsets, index.blocks, offset).sum(-1, dtype=jnp.int32)
    last = jnp.minimum(offset + (i + 1) * op.BLOCK, index.columns.shape[-1])
    seen = jnp.take(jnp.cumsum(index.columns, -1, dtype=jnp.int32), last - 1, axis=-1)
    under = offset // op.BLOCK + i + 1
    total = jnp.where(real, jnp.minimum(whole + -(-seen // op.BLOCK), under), 0).sum(-1)
    return total, jnp.broadcast_to(jnp.where(real, under, 0).sum(-1), total.shape)
