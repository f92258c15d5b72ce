"""Order-preserving integer keys of scores, of which `kernels.select_top` takes the largest."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int32, UInt32

from kvjax.kernels.select_top import ordered
from kvjax.order import places
from kvjax.view import Ranking

_INVALID, _PROTECTED = 0, 0xFF800001


def keys(ranking: Ranking) -> UInt32[Array, "l b h n"]:
    """Unsigned keys whose order is the order of keeping.

    Invalid slots lowest, then NaN scores, then scores in float order; protected slots above every score, the later position
    first among themselves, so that a budget below the protected count keeps the most recent.
    """
    raised = jnp.uint32(_PROTECTED) + jnp.clip(ranking.pos, 0, (1 << 22) - 1).astype(jnp.uint32)
    order = jnp.where(ranking.protected, raised, ordered(ranking.scores.astype(jnp.float32)))
    return jnp.where(ranking.valid, order, jnp.uint32(_INVALID))


def rank_within(block: Int32[Array, "l b h n"], ranking: Ranking) -> Int32[Array, "l b h n"]:
    """How many slots of its own block go before a slot in the order of keeping; equal keys: the lower position goes first.

    Slots of a block lie side by side, blocks ascend.
    """
    block = jnp.where(ranking.valid, block, jnp.iinfo(jnp.int32).max)
    order = jnp.lexsort((ranking.pos, ~keys(ranking), block), axis=-1)
    starts = jnp.pad(block[..., 1:] != block[..., :-1], ((0, 0),) * 3 + ((1, 0),), constant_values=True)
    first = lax.cummax(jnp.where(starts, jnp.arange(block.shape[-1], dtype=jnp.int32), 0), axis=3)
    return places(order) - first
