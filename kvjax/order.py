"""Orders: where each element stands in one."""

import jax.numpy as jnp
from jaxtyping import Array, Int, Int32


def places(order: Int[Array, "..."], axis: int = -1) -> Int32[Array, "..."]:
    """Where each element stands in an order that lists their indices along `axis`: the inverse permutation.

    A scatter, which costs a small part of the second sort of `argsort(argsort(x))`.
    """
    at = jnp.arange(order.shape[axis], dtype=jnp.int32)
    at = jnp.broadcast_to(jnp.expand_dims(at, [i for i in range(order.ndim) if i != axis % order.ndim]), order.shape)
    return jnp.put_along_axis(jnp.zeros_like(at), order, at, axis, inplace=False)
