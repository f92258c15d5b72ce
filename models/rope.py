"""Rotary position embeddings: every published scaling resolved, at construction, to frequencies and one factor."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int


@dataclass(frozen=True)
class Rope:
    """Rotate the two halves of a head: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), angle = position * frequency.

    Su et al., RoFormer (2021), section 3.4.2, in the half-split layout of Hugging Face (not the interleaved one).
    Differs from transformers for 16-bit models only: angles, cos, sin and the rotation itself stay in float32.

    Attributes:
        frequencies: radians a position, d/2 of them, each exactly a float32.
        factor: what cos and sin are multiplied by (1 but for YaRN).
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0

    @property
    def dim(self) -> int:
        """The head dimension d."""
        return 2 * len(self.frequencies)

    def cos_sin(self, positions: Int[Array, "..."]) -> tuple[Float32[Array, "... half"], Float32[Array, "... half"]]:
        """Return factor * cos and factor * sin of position * frequency, float32 [.., d/2]."""
        angles = positions[..., None].astype(jnp.float32) * np.asarray(self.frequencies, np.float32)
        return jnp.cos(angles) * self.factor, jnp.sin(angles) * self.factor

    def rotate(
        self, x: Float[Array, "... d"], cos: Float32[Array, "... half"], sin: Float32[Array, "... half"]
    ) -> Float[Array, "... d"]:
        """Rotate x [.., d] by cos, sin [.., d/2] (broadcast against x's leading axes); keeps x's dtype.

        Halves are an axis that is turned round, not parts that are joined again: XLA makes one program of it.
        """
        halves = x.astype(jnp.float32).reshape(*x.shape[:-1], 2, x.shape[-1] // 2)
        signed = sin[..., None, :] * np.array([[-1], [1]], np.float32)
        return (halves * cos[..., None, :] + halves[..., ::-1, :] * signed).reshape(x.shape).astype(x.dtype)


def plain(theta: float, dim: int) -> Rope:
    """Return frequencies theta^(-2i/d), i = 0..d/2-1 (RoFormer, equation 15)."""
    return Rope(_exact(_inverse(theta, dim)))


def linear(theta: float, dim: int, *, factor: float) -> Rope:
    """Return every frequency over `factor`: positions interpolated (Chen et al. 2023, Position Interpolation)."""
    return Rope(_exact(_inverse(theta, dim) / np.float32(factor)))


def llama3(theta: float, dim: int, *, factor: float, low: float, high: float, original: int) -> Rope:
    """Return the scaling of Llama 3.1: long waves over `factor`, short ones kept, a linear blend between.

    turns = original / wavelength; kept where turns > high, divided where turns < low, else
    f * ((1 - s) / factor + s) with s = (turns - low) / (high - low). Source: the Llama 3.1 model code.
    """
    frequencies = _inverse(theta, dim)
    turns = original * frequencies / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0).astype(np.float32)
    return Rope(_exact((1 - blend) * frequencies / np.float32(factor) + blend * frequencies))


def yarn(
    theta: float, dim: int, *, factor: float, original: int, fast: float, slow: float, scale: float, truncate: bool
) -> Rope:
    """Return YaRN (Peng et al. 2023, sections 3.2 to 3.4): ramp between interpolated and kept frequencies.

    The ramp runs, in index i, from the pair that turns `fast` times within `original` positions to the one that turns
    `slow` times; `truncate` rounds both ends outwards; `scale` multiplies cos and sin.
    """
    lowest, highest = (_index_of(turns, theta, dim, original) for turns in (fast, slow))
    if truncate:
        lowest, highest = math.floor(lowest), math.ceil(highest)
    lowest, highest = max(lowest, 0), min(highest, dim - 1)
    # an empty ramp would divide by zero; the small width is the one transformers uses
    width = (highest - lowest) or 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - lowest) / width, 0, 1).astype(np.float32)
    frequencies = _inverse(theta, dim)
    return Rope(_exact(frequencies / np.float32(factor) * ramp + frequencies * (1 - ramp)), scale)


def yarn_scale(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """Return YaRN's attention factor 0.1 m ln(factor) + 1 (section 3.4); the ratio of two where both m are given."""

    def one(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    return one(mscale) / one(mscale_all_dim) if mscale and mscale_all_dim else one(1.0)


def _inverse(theta: float, dim: int) -> np.ndarray:
    # float32 throughout, as the checkpoints were trained and as the reference computes it: at position 8000 the
    # rounding of a frequency already moves its angle by 5e-4 radians
    return np.float32(1.0) / np.float32(theta) ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))


def _index_of(turns: float, theta: float, dim: int, original: int) -> float:
    return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))


def _exact(frequencies: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f) for f in frequencies.astype(np.float32))
