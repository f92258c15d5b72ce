"""The best slots of each head."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.kernels.select_top import select_top
from kvjax.rank_keys import keys
from kvjax.view import Ranking


def best(
    scores: Float32[Array, "l b h n"], valid: Bool[Array, "l b h n"], count: Int32[Array, "l b h"]
) -> Bool[Array, "l b h n"]:
    """The `count` slots of highest score of each head, or all there are; equal scores: the lower slot."""
    pos = jnp.zeros(valid.shape, jnp.int32)
    ranking = Ranking(scores=scores, protected=jnp.zeros_like(valid), valid=valid, pos=pos)
    return select_top(keys(ranking), jnp.maximum(count, 1)) & valid & (count > 0)[..., None]
