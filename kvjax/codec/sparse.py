"""A few numbers of a row kept by index: which, taken out, and put back."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int32, Integer, PyTree


def ends(x: Float[Array, "*a n"], each: int) -> Int32[Array, "*a m"]:
    """Indices of the `each` least and the `each` greatest numbers of a row, ties to the lower index."""
    return jnp.concatenate([lax.top_k(-x, each)[1], lax.top_k(x, each)[1]], -1).astype(jnp.int32)


def marked(index: Integer[Array, "*a m"], n: int) -> Bool[Array, "*a n"]:
    """Which of n places are named; index n names none."""
    return (index[..., None].astype(jnp.int32) == jnp.arange(n, dtype=jnp.int32)).any(-2)


def put(x: Float[Array, "*a n"], index: Integer[Array, "*a m"], value: Float[Array, "*a m"]) -> Float[Array, "*a n"]:
    """x with the values where the indices say; index n puts nothing."""
    return jnp.put_along_axis(x, index.astype(jnp.int32), value.astype(x.dtype), axis=-1, inplace=False, mode="drop")


def index_dtype(n: int) -> PyTree:
    """The narrowest dtype that holds 0 to n."""
    return jnp.uint8 if n < 1 << 8 else jnp.uint16
