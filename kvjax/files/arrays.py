"""Arrays of any dtype and memory as a file holds them, and back."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

#: What files hold as it is; others are held as their bytes.
_HELD = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "bfloat16", "float32")


def as_stored(x: PyTree) -> jax.Array:
    """An array a file can hold: x itself, or its bytes."""
    if str(x.dtype) in _HELD:
        return x if isinstance(x, jax.Array) else jnp.asarray(x)
    return jnp.asarray(np.frombuffer(np.asarray(x).tobytes(), np.uint8))


def read_as(stored: jax.Array, shape: list[int], dtype: str, *, memory: str) -> PyTree:
    """The array that was stored, in the memory it came from: a kind of jax's, or "numpy"."""
    if dtype in _HELD:
        found = stored
    else:
        found = np.frombuffer(np.asarray(stored).tobytes(), jnp.dtype(dtype)).reshape(shape)
    if memory == "numpy":
        return np.array(found)
    found = jnp.asarray(found)
    return jax.device_put(found, jax.memory.Space.Host) if memory == "pinned_host" else found
