"""Arrays through DEFLATE, byte planes apart: fewer bytes, and the same array to the bit."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, UInt8

#: zlib's level: 6 of 9 is where further ones stop paying for their time.
_LEVEL = 6


def deflated(x: jax.Array) -> UInt8[np.ndarray, " m"]:
    """An array's bytes, those at one place of the last axis behind each other, compressed.

    What lies at one place of a row, a component's codes or the high bytes of numbers, is alike from slot to slot; within a row it
    is not. The coder then finds one distribution after the other.
    """
    rows = np.ascontiguousarray(np.asarray(x)).view(np.uint8).reshape(-1, _width(x.shape, x.dtype))
    return np.frombuffer(zlib.compress(rows.T.tobytes(), _LEVEL), np.uint8)


def inflated(packed: PyTree, shape: list[int], dtype: str) -> jax.Array:
    """The array that was compressed.

    Raises:
        ValueError: no bytes of such an array.
    """
    kind = jnp.dtype(dtype)
    try:
        planes = np.frombuffer(zlib.decompress(np.asarray(packed).tobytes()), np.uint8)
        rows = np.ascontiguousarray(planes.reshape(_width(shape, kind), -1).T)
    except (zlib.error, ValueError) as error:
        raise ValueError(f"no compressed {dtype} {list(shape)}: {error}") from error
    return jnp.asarray(rows.reshape(-1).view(kind).reshape(shape))


def _width(shape: PyTree, dtype: np.dtype) -> int:
    """Bytes of a row: the last axis, or one number of an array of one axis."""
    return max(1, dtype.itemsize * (shape[-1] if len(shape) > 1 else 1))
