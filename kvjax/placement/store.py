"""What a store of rows is to those who only count its bytes: a jax array, or an object that knows its own."""

import jax
import numpy as np


class Store:
    """Rows outside jax arrays, which know their `nbytes`: NumPy rows behind a callback."""

    def saved(self) -> np.ndarray:
        """The rows, for a file."""
        raise NotImplementedError(f"{type(self).__name__} must define saved()")

    @staticmethod
    def restored(rows: np.ndarray) -> "Store":
        """A new store of rows from a file."""
        raise NotImplementedError("a store must define restored(rows)")


def is_store(x: object) -> bool:
    """Whether x holds rows outside jax arrays."""
    return isinstance(x, Store)


def on_host(x: object) -> bool:
    """Whether the bytes of x are in host memory."""
    if is_store(x):
        return True
    return isinstance(x, jax.Array) and x.sharding.memory_kind == "pinned_host"


def store_nbytes(x: object) -> int:
    """Bytes of x."""
    return int(x.nbytes)
