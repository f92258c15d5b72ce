"""Rotations that spread a vector over its channels: fixed by a seed, the same when written and read."""

import zlib
from functools import cache

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Float32

from kvjax.protocols import Decoder


@struct.dataclass
class Rotation:
    """An orthogonal matrix for every head dimension.

    Args:
        seed: what it is drawn from.
        checksum: of its matrix, as `digest` says, where it must be the one that something was stored with; "" asks for nothing.
    """

    seed: int = struct.field(pytree_node=False, default=0)
    checksum: str = struct.field(pytree_node=False, default="")

    def matrix(self, d: int) -> Float[np.ndarray, "d d"]:
        """Π, orthogonal, float64."""
        raise NotImplementedError(f"{type(self).__name__} must define matrix(d)")

    def digest(self, d: int) -> str:
        """Eight hexadecimal digits over the signs of Π: another seed, or another generator of random numbers, gives others."""
        return f"{zlib.crc32(np.packbits(self.matrix(d) >= 0).tobytes()):08x}"

    def check(self, model: Decoder) -> None:
        """Raise ValueError where the matrix is not that of the checksum, or there is none for the model's head dimension."""
        found = self.digest(model.head_dim)
        if self.checksum not in ("", found):
            raise ValueError(
                f"{type(self).__name__}(seed={self.seed}) of {model.head_dim} channels has checksum {found}, not {self.checksum}: "
                "what was stored cannot be read with it"
            )

    def rotate(self, x: Float[Array, "*a d"]) -> Float32[Array, "*a d"]:
        """Π x of every vector along the last axis."""
        return jnp.matmul(x.astype(jnp.float32), self._table(x.shape[-1]).T, precision="highest")

    def unrotate(self, y: Float[Array, "*a d"]) -> Float32[Array, "*a d"]:
        """Πᵀ y."""
        return jnp.matmul(y.astype(jnp.float32), self._table(y.shape[-1]), precision="highest")

    def _table(self, d: int) -> Float32[Array, "d d"]:
        return jnp.asarray(self.matrix(d), jnp.float32)


@struct.dataclass
class Hadamard(Rotation):
    """Π = H D / sqrt(d): signs D drawn from the seed, then the Sylvester-Hadamard matrix H.

    Args:
        signed: whether there are signs; without them the seed is of no account.
        blocks: what becomes of a d that is no power of two: blocks of such sizes, the widest first, are rotated apart,
            96 = 64 + 32; or it is refused, with a ValueError.
    """

    signed: bool = struct.field(pytree_node=False, default=True)
    blocks: bool = struct.field(pytree_node=False, default=True)

    def check(self, model: Decoder) -> None:
        if not self.blocks and len(powers_of_two(model.head_dim)) > 1:
            raise ValueError(f"a Hadamard matrix needs a power of two; the model's head dimension is {model.head_dim}")
        Rotation.check(self, model)

    def matrix(self, d: int) -> Float[np.ndarray, "d d"]:
        return hadamard(d) * random_signs(self.seed, d) if self.signed else hadamard(d)


@struct.dataclass
class Haar(Rotation):
    """Π uniform over all rotations: Q of a Gaussian matrix's QR, R's diagonal made positive."""

    def matrix(self, d: int) -> Float[np.ndarray, "d d"]:
        return haar(self.seed, d)


def powers_of_two(d: int) -> list[int]:
    """d as a sum of different powers of two, the greatest first."""
    return [1 << i for i in reversed(range(d.bit_length())) if d >> i & 1]


@cache
def hadamard(d: int) -> Float[np.ndarray, "d d"]:
    """H / sqrt(d), symmetric, H[i, j] = (-1)^(bits that i and j share); block by block where d is no power of two."""
    full, at = np.zeros((d, d)), 0
    for size in powers_of_two(d):
        i = np.arange(size)
        shared = np.bitwise_count(i[:, None] & i)
        full[at : at + size, at : at + size] = (1 - 2 * (shared % 2).astype(np.float64)) / np.sqrt(size)
        at += size
    return full


def random_signs(seed: int, d: int) -> Float[np.ndarray, " d"]:
    """±1, from the highest bit of each number that the generator draws."""
    return 1.0 - 2.0 * (np.random.PCG64(seed).random_raw(d) >> np.uint64(63)).astype(np.float64)


@cache
def haar(seed: int, d: int) -> Float[np.ndarray, "d d"]:
    """A random rotation."""
    q, r = np.linalg.qr(np.random.Generator(np.random.PCG64(seed)).standard_normal((d, d)))
    return q * np.sign(np.diag(r))
