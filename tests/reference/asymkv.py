"""AsymKV (arXiv 2410.13212): KIVI with more bits for the keys of the first layers, and for the values of fewer of them.

b_K(l) = high for l < key_layers, else low; b_V(l) = high for l < value_layers, else low, value_layers <= key_layers.
"""

from fractions import Fraction

import numpy as np

from . import affine
from .kivi import Kivi


def bits_of(layer: int, key_layers: int, value_layers: int, high: int = 2, low: int = 1) -> tuple[int, int]:
    """(b_K, b_V) of a layer."""
    return high if layer < key_layers else low, high if layer < value_layers else low


def head(layer: int, d: int, key_layers: int, value_layers: int, group: int, residual: int) -> Kivi:
    """The cache of one KV head of a layer."""
    bits_k, bits_v = bits_of(layer, key_layers, value_layers)
    return Kivi(d, bits_k, bits_v, group_k=group, group_v=group, residual=residual)


def bits_a_scalar(layers: int, key_layers: int, value_layers: int, group: int = 32) -> tuple[Fraction, Fraction, Fraction]:
    """Mean bits of a key's and of a value's number, and of both, steps and minima included, the exact windows not."""
    bits = np.array([bits_of(layer, key_layers, value_layers) for layer in range(layers)])
    meta = affine.bits_a_scalar(group, bits=1, group=group) - 1
    keys, values = (Fraction(int(x.sum()), layers) + meta for x in bits.T)
    return keys, values, (keys + values) / 2
