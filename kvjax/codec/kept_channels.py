"""Some channels of every key, the same for all slots of a head: the others are not stored (ThinK)."""

import math

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.codec.codec import Codec
from kvjax.codec.layer_regions import LayerRegions
from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.compact import first
from kvjax.kernels.ragged_attention import ragged_scores
from kvjax.order import places
from kvjax.types import Keys, Mask, Queries


def channel_worth(q: Float[Array, "b h g w d"], k: Keys, stays: Mask) -> Float32[Array, "b h d"]:
    """u[c] = mean of q_c² over the queries, and those of the group, times the mean of k_c² over the keys that stay."""
    energy = jnp.square(k.astype(jnp.float32)) * stays[..., None]
    return jnp.square(q.astype(jnp.float32)).mean((2, 3)) * (energy.sum(2) / stays.sum(-1, keepdims=True))


def most_worth(u: Float32[Array, "b h d"], count: int) -> Bool[Array, "b h d"]:
    """The `count` channels of largest u; equal ones: the lower channel."""
    rank = places(jnp.argsort(-u, -1, stable=True))
    return rank < count


@struct.dataclass
class KeptChannels(Codec):
    """k ≈ k on the channels that matter to recent queries, 0 elsewhere: d - floor(d · pruned) numbers a key.

    Args:
        pruned: ρ, share of a head's channels that are left out, in [0, 1).
        window: last queries of the prompt that channels are judged by, with all keys that are not evicted.

    Which channels is fitted on each prompt, one bit mask of d bytes for each layer, row and KV head. Queries are cut to the
    channels, scaled as if whole. Channels are those after the rotary embedding, one by one, not in its pairs.
    Source: ThinK, arXiv 2407.21018, section 3.2.
    Raises: ValueError for a share outside [0, 1), or a window below 1.
    """

    pruned: float = struct.field(pytree_node=False, default=0.4)
    window: int = struct.field(pytree_node=False, default=32)

    def __post_init__(self):
        if not 0 <= self.pruned < 1 or self.window < 1:
            raise ValueError(f"a share of channels in [0, 1) is pruned, by 1 query or more; got {self.pruned} and {self.window}")

    def kept(self, d: int) -> int:
        """Channels that stay of d."""
        return d - int(d * self.pruned)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(self.window)})

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> Float[Array, "s e"]:
        return jnp.zeros((slots, self.kept(d)), dtype)

    def fit_to(self, x: Keys, valid: Mask, stays: Mask, evidence: Evidence) -> Bool[Array, "b h d"]:
        del valid
        return most_worth(channel_worth(evidence.window_queries(self.window), x, stays), self.kept(x.shape[-1]))

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> Float[Array, "b h n e"]:
        del pos
        return jnp.take_along_axis(x, first(params)[:, :, None, : self.kept(x.shape[-1])], -1)

    def decode(self, rows: Float[Array, "b h n e"], dtype: DTypeLike, params: PyTree = ()) -> Keys:
        at = jnp.clip(jnp.cumsum(params, -1) - 1, 0)[:, :, None]
        return jnp.where(params[:, :, None], jnp.take_along_axis(rows, at, -1), 0).astype(dtype)

    def scores(self, q: Queries, at: LayerRegions, params: PyTree = ()) -> Float32[Array, "b h g t n"]:
        d, e = q.shape[-1], self.kept(q.shape[-1])
        narrow = jnp.take_along_axis(q, first(params)[:, :, None, None, :e], -1)
        where = (at.pos, at.start, at.length, at.positions)
        as_whole = narrow.astype(jnp.float32) * math.sqrt(e / d)  # the product is divided by the root of the width it sees
        return ragged_scores(as_whole, at.pool, *where, cap=at.padded_slots, bias=at.bias, window=at.window)
