"""Attention over parts that have no key in common, put together by their log denominators."""

from collections.abc import Sequence
from functools import reduce

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

#: The output of attention over a part, and the log of its softmax denominator; 0 and -inf where it has no key.
Part = tuple[Float[Array, "*q d"], Float32[Array, "*q"]]


def joined(parts: Sequence[Part]) -> Part:
    """out = Σ_i exp(lse_i - lse) out_i,  lse = log Σ_i exp(lse_i); the output in the first part's dtype.

    Source: NEO, arXiv 2411.01142; Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    lse = reduce(jnp.logaddexp, [part[1] for part in parts])

    def share(own):
        return jnp.where(own > -jnp.inf, jnp.exp(own - lse), 0.0)[..., None]

    out = sum(share(own) * out.astype(jnp.float32) for out, own in parts)
    return out.astype(parts[0][0].dtype), lse
