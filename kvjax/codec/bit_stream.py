"""Codes of b bits one behind the other in bytes, none spared: code j at bits b·j to b·(j + 1) of its row, lowest bits first."""

import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt8


def stream_bytes(n: int, bits: int) -> int:
    """ceil(n·b / 8): bytes that n codes take."""
    return -(-n * bits // 8)


def pack_bits(codes: Int32[Array, "*a n"], bits: int) -> UInt8[Array, "*a w"]:
    """Codes along the last axis in bytes; what does not fill the last byte is 0."""
    each = (codes[..., None] >> jnp.arange(bits, dtype=jnp.int32)) & 1
    flat = each.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    return jnp.packbits(flat.astype(jnp.uint8), axis=-1, bitorder="little")


def unpack_bits(packed: UInt8[Array, "*a w"], n: int, bits: int) -> Int32[Array, "*a n"]:
    """The first n codes of bytes along the last axis."""
    each = jnp.unpackbits(packed, axis=-1, count=n * bits, bitorder="little").reshape(*packed.shape[:-1], n, bits)
    return (each.astype(jnp.int32) << jnp.arange(bits, dtype=jnp.int32)).sum(-1, dtype=jnp.int32)
