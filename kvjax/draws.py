"""Uniform numbers that depend on what they are for, not on where it lies: a token's draw is the same in any batch and any slot."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float32, UInt32


def _mixed(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A permutation of 32-bit words in which every input bit reaches every output bit: two rounds of shift and multiply."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0x735A2D97)
    return x ^ (x >> 15)


def uniform(seed: Any, *folds: Any) -> Float32[Array, "..."]:
    """Numbers in [0, 1), 24 bits each: a function of the seed and of the integers folded in, which broadcast."""
    word = _mixed(jnp.asarray(seed).astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
    for fold in folds:
        word = _mixed(word + jnp.uint32(0x9E3779B9) ^ _mixed(jnp.asarray(fold).astype(jnp.uint32)))
    return (word >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
