"""Norms that have a derivative at 0, where it is 0: padding is of zeros."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32


@jax.custom_jvp
def root(squares: Float32[Array, "*n"]) -> Float32[Array, "*n"]:
    """sqrt, with derivative 0 at 0."""
    return jnp.sqrt(squares)


@root.defjvp
def _slope(squares: tuple[Array], by: tuple[Array]) -> tuple[Array, Array]:
    """The root, which stays what it is to the bit, and by / (2 sqrt)."""
    y = root(squares[0])
    return y, jnp.where(y == 0, 0.0, by[0] / jnp.where(y == 0, 1.0, 2 * y))


def norm(x: Float[Array, "*n d"], *, keepdims: bool = False) -> Float32[Array, "*n _"] | Float32[Array, "*n"]:
    """||x|| over the last axis in float32: a 16-bit norm would tie most slots."""
    return _norm(x.astype(jnp.float32), keepdims=keepdims)


@partial(jax.jit, static_argnames="keepdims")
def _norm(x: Float32[Array, "*n d"], *, keepdims: bool) -> Float32[Array, "..."]:
    return root((x * x).sum(-1, keepdims=keepdims))
