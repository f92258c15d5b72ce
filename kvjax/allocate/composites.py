"""Layers compete with what their heads rank alike: the k-th best tokens of all heads together (KVCompose)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.allocate.uniform import held
from kvjax.kernels.select_top import ordered, select_top
from kvjax.ranges import Count
from kvjax.stage import Allocator
from kvjax.view import Ranking


def composites(u: Float32[Array, "l b h n"]) -> Float32[Array, "l b n"]:
    """c_lk = mean_h of the k-th largest u_lh; those of layer 0 are the maximum over all layers. -inf in `u` comes last."""
    c = -jnp.sort(-u, axis=-1)
    c = c.mean(2)
    return c.at[0].set(c.max(0))


def layer_counts(
    c: Float32[Array, "l b n"], total: Int32[Array, " b"], lead: Int32[Array, " b"], real: Bool[Array, "l b n"]
) -> Int32[Array, "l b"]:
    """How many of the `total` best pairs (layer, rank) lie in each layer; the first `lead` ranks of every layer go before.

    Equal composites: the lower layer, then the lower rank.
    """
    layers, b, n = c.shape
    key = jnp.where(jnp.arange(n) < lead[:, None], jnp.uint32(0xFFFFFFFF), ordered(c))
    flat = jnp.where(real, key, jnp.uint32(0)).swapaxes(0, 1).reshape(b, layers * n)
    return select_top(flat, total).reshape(b, layers, n).sum(-1).astype(jnp.int32).T


@struct.dataclass
class Composites(Allocator):
    """b_lh = b_l: of the L · mean best composites of the whole model, those of layer l.

    Args:
        lower: ranks that every layer has beforehand, at least 1.

    Source: KVCompose, arXiv 2509.05165, section 3, as ported. Differs: every layer keeps a slot at least.
    """

    lower: Count = 1

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        c = composites(jnp.where(ranking.valid, ranking.scores, -jnp.inf))
        each = jnp.minimum(mean_budget, n.max((0, 2)))
        lead = jnp.minimum(jnp.maximum(self.lower, 1), each)
        counts = layer_counts(c, n.shape[0] * each, lead, jnp.arange(c.shape[-1]) < n.max(2)[..., None])
        return jnp.broadcast_to(counts[..., None], n.shape)
