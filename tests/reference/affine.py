"""Asymmetric affine group quantiser: b-bit codes, one step and one minimum a group, packed into 32-bit words.

mn, mx = min, max of the group; s = (mx - mn) / (2^b - 1); code = clip(round((x - mn) / s), 0, 2^b - 1); x^ = s code + mn.

Source: KIVI, arXiv 2402.02750. s and mn are rounded to the type they are stored in *before* the division, so that coding and
decoding use the same numbers, as in the release. Differs: the release subtracts and divides in the data's 16 bits, here it is
float64. Open points, settled here: a 3-bit word holds ten codes and two spare bits; an axis that does not fill its last word is
padded with code 0.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Int, UInt32


@dataclass
class Block:
    """Codes in the shape of x; `scale` and `low` with one entry a group along `axis`."""

    codes: Int[np.ndarray, "..."]
    scale: Float[np.ndarray, "..."]
    low: Float[np.ndarray, "..."]
    axis: int


def quantise(x: Float[np.ndarray, "..."], *, bits: int, group: int, axis: int, store: type[np.floating] = np.float64) -> Block:
    """Groups of `group` neighbours along `axis`, which they must fill; halves go to the even code; a constant group is 0."""
    if x.shape[axis] % group:
        raise ValueError(f"{x.shape[axis]} entries are not groups of {group}")
    lines = np.moveaxis(x.astype(np.float64), axis, -1)
    parts = lines.reshape(*lines.shape[:-1], -1, group)
    low, top = parts.min(axis=-1), 2**bits - 1
    scale = (parts.max(axis=-1) - low) / top
    scale, low = scale.astype(store).astype(np.float64), low.astype(store).astype(np.float64)
    step = np.where(scale > 0, scale, 1.0)
    codes = np.clip(np.rint((parts - low[..., None]) / step[..., None]), 0, top).astype(np.int64)
    codes, scale, low = (np.moveaxis(y, -1, axis) for y in (codes.reshape(lines.shape), scale, low))
    return Block(codes, scale, low, axis)


def dequantise(block: Block) -> Float[np.ndarray, "..."]:
    """x^ = s code + mn."""
    group = block.codes.shape[block.axis] // block.scale.shape[block.axis] if block.codes.size else 1
    return block.codes * np.repeat(block.scale, group, axis=block.axis) + np.repeat(block.low, group, axis=block.axis)


def codes_a_word(bits: int) -> int:
    """32, 16, 10, 8, 4 codes of 1, 2, 3, 4, 8 bits."""
    return 32 // bits


def words(n: int, bits: int) -> int:
    """Words that n codes take."""
    return -(-n // codes_a_word(bits))


def pack(codes: Int[np.ndarray, "..."], *, bits: int, axis: int) -> UInt32[np.ndarray, "..."]:
    """Code j of a word sits at its bits [b j, b (j + 1)): lowest bits first."""
    lines = np.moveaxis(codes, axis, -1)
    n, per = lines.shape[-1], codes_a_word(bits)
    out = np.zeros((*lines.shape[:-1], words(n, bits)), np.uint32)
    for i in range(n):
        out[..., i // per] |= lines[..., i].astype(np.uint32) << np.uint32(bits * (i % per))
    return np.moveaxis(out, -1, axis)


def unpack(packed: UInt32[np.ndarray, "..."], n: int, *, bits: int, axis: int) -> Int[np.ndarray, "..."]:
    """The first n codes, by logical shifts."""
    lines, per = np.moveaxis(packed, axis, -1), codes_a_word(bits)
    codes = [lines[..., i // per] >> np.uint32(bits * (i % per)) & np.uint32(2**bits - 1) for i in range(n)]
    out = np.stack(codes, axis=-1) if codes else np.zeros((*lines.shape[:-1], 0))
    return np.moveaxis(out.astype(np.int64), -1, axis)


def bits_a_scalar(n: int, *, bits: int, group: int, meta: int = 16) -> Fraction:
    """(32 words(n) + 2 meta n / group) / n: spare bits, step and minimum counted; b + 32 / group where words are full."""
    return Fraction(32 * words(n, bits) + 2 * meta * (n // group), n)
