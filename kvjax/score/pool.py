"""1-D pooling of scores along the token axis: a spike lifts its neighbours, so that whole spans survive."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32


def _odd(kernel: int, name: str) -> int:
    if kernel < 1 or kernel % 2 == 0:
        raise ValueError(f"{name} needs an odd kernel of at least 1 so that the length is kept; got {kernel}")
    return kernel


def _slide(a: Float32[Array, "... n"], kernel: int, outside: float, reduce: Callable) -> Float32[Array, "... n"]:
    """`reduce` over every window of the last axis, `outside` beyond its ends."""
    return lax.reduce_window(a, outside, reduce, (1,) * (a.ndim - 1) + (kernel,), (1,) * a.ndim, "SAME")


@struct.dataclass
class AvgPool:
    """pool(a)[i] = (1/kernel) Σ a[i-p..i+p], zeros outside, the divisor always `kernel` (edges are damped)."""

    kernel: int = struct.field(pytree_node=False, default=5)

    def __post_init__(self):
        _odd(self.kernel, "AvgPool")

    def __call__(self, a: Float32[Array, "... n"]) -> Float32[Array, "... n"]:
        return _slide(a, self.kernel, 0.0, lax.add) / self.kernel


@struct.dataclass
class MaxPool:
    """pool(a)[i] = max a[i-p..i+p], -inf outside."""

    kernel: int = struct.field(pytree_node=False, default=7)

    def __post_init__(self):
        _odd(self.kernel, "MaxPool")

    def __call__(self, a: Float32[Array, "... n"]) -> Float32[Array, "... n"]:
        return _slide(a, self.kernel, -jnp.inf, lax.max)


@struct.dataclass
class NoPool:
    """The scores as they are."""

    def __call__(self, a: Float32[Array, "... n"]) -> Float32[Array, "... n"]:
        return a
