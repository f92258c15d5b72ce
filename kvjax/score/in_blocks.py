"""Keys ranked as they arrive, block by block against what was kept so far, or chunk by chunk by themselves (KeyDiff)."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Int32

from kvjax.budget import slots_in
from kvjax.evidence import Evidence
from kvjax.ranges import Size
from kvjax.score.geometry import key_difference
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Number, Scores
from kvjax.view import LayerView


def block_wise(k: Keys, valid: Mask, slots: Int32[Array, " b"], *, block: int) -> Scores:
    """u of `key_difference` among the keys held when the last block has been cut; -inf for keys that went before.

    The first `slots` keys are held; every next `block` keys join them, and the best `slots` of all stay.
    """
    n, first = k.shape[2], slots[:, None, None]
    pos = jnp.arange(n, dtype=jnp.int32)

    def cut(i, held):
        start = first + i * block
        joined = held | (valid & (pos >= start) & (pos < start + block))
        worst_last = jnp.argsort(-jnp.where(joined, key_difference(k, joined), -jnp.inf), -1, stable=True)
        best = joined & (jnp.argsort(worst_last, -1) < first)
        return jnp.where((valid & (pos >= start)).any(-1, keepdims=True), best, held)

    rounds = (jnp.maximum(valid.sum(-1).max() - slots.min(), 0) + block - 1) // block
    held = lax.fori_loop(0, rounds, cut, valid & (pos < first))
    return jnp.where(held, key_difference(k, held), -jnp.inf)


def chunk_wise(k: Keys, valid: Mask, *, size: int) -> Scores:
    """u of `key_difference` of every chunk of `size` keys by itself."""
    b, h, n, _ = k.shape
    k, valid = jnp.pad(k, ((0, 0),) * 2 + ((0, -n % size), (0, 0))), jnp.pad(valid, ((0, 0),) * 2 + ((0, -n % size),))
    u = key_difference(k.reshape(b, -1, size, k.shape[-1]), valid.reshape(b, -1, size))
    return u.reshape(b, h, -1)[..., :n]


@struct.dataclass
class ChunkKeyDiff(Scorer):
    """`KeyDiff` in chunks of `size` slots, each against its own anchor: see `chunk_wise`. Goes with `EachChunk`."""

    size: Size = struct.field(pytree_node=False, default=1024)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return chunk_wise(view.k, view.valid, size=self.size)


@struct.dataclass
class BlockKeyDiff(Scorer):
    """`KeyDiff` as a prompt arrives in blocks: see `block_wise`. With `TopK()` and the same budget just the keys held stay.

    Args:
        budget: the policy's, slots or a share.   block: tokens that arrive at once.

    Source: KeyDiff, arXiv 2504.15364, algorithm 1, on the keys of a prompt read whole.
    """

    budget: Number = 256
    block: Size = struct.field(pytree_node=False, default=128)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return block_wise(view.k, view.valid, slots_in(self.budget, view.length), block=self.block)
