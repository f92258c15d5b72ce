"""Codes of b bits in 32-bit words: code j of a word at its bits b·j to b·(j + 1), lowest bits first."""

import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32


def codes_a_word(bits: int) -> int:
    """32, 16, 10, 8, 4 codes of 1, 2, 3, 4, 8 bits: words of 3-bit codes spare two bits."""
    return 32 // bits


def words(n: int, bits: int) -> int:
    """Words that n codes take."""
    return -(-n // codes_a_word(bits))


def pack(codes: Int32[Array, "*a n"], bits: int) -> UInt32[Array, "*a w"]:
    """Codes along the last axis in words; what does not fill the last word is 0."""
    n, each = codes.shape[-1], codes_a_word(bits)
    many = words(n, bits)
    codes = jnp.pad(codes, (*((0, 0),) * (codes.ndim - 1), (0, many * each - n))).astype(jnp.uint32)
    shifted = codes.reshape(*codes.shape[:-1], many, each) << (bits * jnp.arange(each, dtype=jnp.uint32))
    return shifted.sum(-1, dtype=jnp.uint32)


def unpack(packed: UInt32[Array, "*a w"], n: int, bits: int) -> Int32[Array, "*a n"]:
    """The first n codes of words along the last axis."""
    shifts = bits * jnp.arange(codes_a_word(bits), dtype=jnp.uint32)
    codes = (packed[..., None] >> shifts) & jnp.uint32((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)[..., :n].astype(jnp.int32)
