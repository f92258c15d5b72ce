"""Random numbers that depend on a seed and on where they stand, never on what is computed beside them.

A row of a batch, or a prompt padded to another length, so draws what it draws alone. Numbers are those of `jax.random.fold_in`,
`jax.random.uniform` and `jax.random.gumbel`, one key an index; written out, because a CPU runs JAX's own rounds as a loop that
passes through memory at each of them.
"""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, PyTree, UInt32

from kvjax.types import Number

#: Two words: a key, or what a key turns into other words.
Words = tuple[UInt32[Array, "..."], UInt32[Array, "..."]]

#: How far each round of Threefry-2x32 turns the second word, four rounds between two additions of the key.
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
#: What makes the third word of a key.
PARITY = np.uint32(0x1BD11BDA)


def _turned(x: UInt32[Array, "..."], by: int) -> UInt32[Array, "..."]:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def threefry(key: Words, count: Words) -> Words:
    """Threefry-2x32 with 20 rounds: two words that look random, from a key and a count.

    Source: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011; JAX's default generator.
    """
    schedule = (*key, key[0] ^ key[1] ^ PARITY)
    x, y = count[0] + key[0], count[1] + key[1]
    for done in range(5):
        for by in ROTATIONS[done % 2]:
            x = x + y
            y = _turned(y, by) ^ x
        x = x + schedule[(done + 1) % 3]
        y = y + schedule[(done + 2) % 3] + np.uint32(done + 1)
    return x, y


def keys_at(seed: Number, *where: PyTree) -> Words:
    """A key for every entry of the broadcast of `where`: the seed, folded with each index in turn.

    Each fold is a kernel of its own: XLA writes the rounds of several that it fuses out over and over, and compiles without end.
    """

    def fold(key: Words, index: Number) -> Words:
        words = threefry(key, (jnp.uint32(0), jnp.asarray(index, jnp.int32).astype(jnp.uint32)))
        return lax.optimization_barrier(words)

    first, second = jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))
    return reduce(fold, where, (first, second))


def uniform_at(seed: Number, *where: PyTree) -> Float32[Array, "..."]:
    """u ~ U[0, 1) at every index, a multiple of 2^-23."""
    one, other = threefry(keys_at(seed, *where), (jnp.uint32(0), jnp.uint32(0)))
    mantissa = (one ^ other) >> np.uint32(9)
    return lax.bitcast_convert_type(mantissa | np.uint32(0x3F800000), jnp.float32) - 1.0  # a number in [1, 2), less 1


def gumbel_at(seed: Number, *where: PyTree) -> Float32[Array, "..."]:
    """Standard Gumbel noise -ln(-ln u) at every index."""
    u = jnp.maximum(uniform_at(seed, *where), jnp.finfo(jnp.float32).tiny)
    return -jnp.log(-jnp.log(u))
