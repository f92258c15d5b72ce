"""What a store of rows is to those who only count its bytes: a jax array, or an object that knows its own."""


import jax


class Store:
    """Rows outside jax arrays, which know their `nbytes`: NumPy rows behind a callback."""


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
