"""TurboQuant: rotate, divide by the norm, code every channel by Lloyd-Max levels; the inner-product form; the engine's form.

u = x / |x|; y = R u; code = nearest level; x^ = |x| R' c. With inner products: one bit less, r = x - x^, and
sqrt(pi/2) / d |r| S' sign(S r) is added. The engine: R = H / sqrt(d), levels of N(0, 1/d), ties up, c made one unit long.

Source: TurboQuant, arXiv 2504.19874; vLLM's turboquant files. Differs: levels by numerical integration on a fine grid.
"""

from functools import cache

import numpy as np
from jaxtyping import Float


@cache
def levels(bits: int, d: int, normal: bool = False) -> Float[np.ndarray, "c"]:
    """The fixed point of Lloyd's iteration, ascending; of the sphere's density at d, or of N(0, 1/d)."""
    x = np.linspace(-1, 1, 200_001) if not normal else np.linspace(-9, 9, 200_001) / np.sqrt(d)
    f = np.exp(-(x**2) * d / 2) if normal else (1 - x**2).clip(0) ** ((d - 3) / 2)
    mass, moment = np.append(0, np.cumsum((f[1:] + f[:-1]) / 2)), np.append(0, np.cumsum(((x * f)[1:] + (x * f)[:-1]) / 2))
    c = np.linspace(-2.5, 2.5, 2**bits) / np.sqrt(d)
    for _ in range(3000):
        borders = np.concatenate([[x[0]], (c[1:] + c[:-1]) / 2, [x[-1]]])
        c = np.diff(np.interp(borders, x, moment)) / np.diff(np.interp(borders, x, mass))
    return (c - c[::-1]) / 2


def sylvester(d: int) -> Float[np.ndarray, "d d"]:
    """H / sqrt(d) by Kronecker products."""
    h = np.ones((1, 1))
    while len(h) < d:
        h = np.kron([[1, 1], [1, -1]], h)
    return h / np.sqrt(d)


def signed_hadamard(d: int, seed: int) -> Float[np.ndarray, "d d"]:
    """H D / sqrt(d): -1 where the generator's number has its highest bit set."""
    draws = np.random.PCG64(seed).random_raw(d)
    return sylvester(d) @ np.diag([-1.0 if int(x) >> 63 else 1.0 for x in draws])


def codes(y: Float[np.ndarray, "n d"], c: Float[np.ndarray, "c"], ties_up: bool = False) -> np.ndarray:
    """The nearest level; ties to the lower one, or up."""
    away = np.abs(y[..., None] - c)
    return len(c) - 1 - away[..., ::-1].argmin(-1) if ties_up else away.argmin(-1)


def mse(
    x: Float[np.ndarray, "n d"], bits: int, rotation: Float[np.ndarray, "d d"], *, engine: bool = False
) -> Float[np.ndarray, "n d"]:
    """x^ of every row."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    c = levels(bits, x.shape[1], engine)
    y = x / np.where(norm > 0, norm, 1) @ rotation.T
    unit = c[codes(y, c, engine)]
    if engine:
        unit = unit / np.linalg.norm(unit, axis=-1, keepdims=True)
    return norm.astype(np.float16) * (unit @ rotation)


def inner_product(
    x: Float[np.ndarray, "n d"], bits: int, rotation: Float[np.ndarray, "d d"], s: Float[np.ndarray, "d d"]
) -> Float[np.ndarray, "n d"]:
    """The form at bits - 1, and the error's signs under S of the rotated coordinates."""
    first = mse(x, bits - 1, rotation) if bits > 1 else np.zeros_like(x)
    rest = (x - first) @ rotation.T
    norm = np.linalg.norm(rest, axis=-1, keepdims=True).astype(np.float16)
    sign = np.where(rest @ s.T >= 0, 1.0, -1.0)
    return first + np.sqrt(np.pi / 2) / len(s) * norm * (sign @ s) @ rotation


def uniform(x: Float[np.ndarray, "n d"], bits: int) -> Float[np.ndarray, "n d"]:
    """The engine's values: one step a token, halves up."""
    low, top = x.min(-1, keepdims=True), 2**bits - 1
    scale = np.maximum((x.max(-1, keepdims=True) - low) / top, 1e-8)
    code = np.floor((x - low) / scale + 0.5)
    return scale.astype(np.float16) * code + low.astype(np.float16)
