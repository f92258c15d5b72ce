"""Budgets as users give them: slots, or a share of the prompt."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.types import Number

#: Slots per KV head of a policy that evicts nothing, however long the text becomes.
EVERYTHING = 1 << 30


def number_of(x: object) -> PyTree:
    """A NumPy or JAX scalar with a value as the Python number it is; anything else as it is."""
    if isinstance(x, jax.core.Tracer) or not isinstance(x, np.generic | np.ndarray | jax.Array):
        return x
    return x.item() if np.ndim(x) == 0 else x


def check_budget(budget: Number) -> None:
    """A positive integer of slots, or a share in (0, 1]; anything traced, or a pytree's placeholder, passes.

    Raises:
        TypeError, ValueError: a budget of another kind, or out of range.
    """
    value = number_of(budget)
    if isinstance(value, bool | None | str | bytes | complex | list | tuple | dict | np.ndarray) or _is_array(value):
        raise TypeError(f"budget must be an int (mean slots per KV head) or a float in (0, 1] (share kept); got {budget!r}")
    if isinstance(value, int) and value < 1:
        raise ValueError(f"budget must be at least 1 slot per KV head; got {budget}")
    if isinstance(value, float) and not (math.isfinite(value) and 0.0 < value <= 1.0):
        raise ValueError(
            f"a float budget is the share of the prompt kept, in (0, 1]; got {budget}. For a number of slots pass an int"
        )


def check_whole(name: str, number: Number, least: int) -> None:
    """A whole number from `least` on; anything traced, or a pytree's placeholder, passes.

    Raises:
        ValueError: a fraction, a number below `least`, no number.
    """
    value = number_of(number)
    mistake = isinstance(value, bool | str) or (isinstance(value, int | float) and not float(value).is_integer())
    if mistake or (isinstance(value, int | float) and value < least):
        raise ValueError(f"{name} must be a whole number of at least {least}; got {number!r}")


def _is_array(x: object) -> bool:
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)


def slots_of(budget: int | float, length: int) -> int:
    """A budget as slots per KV head: an int as it is, a share as floor(share · length), at least 1."""
    value = number_of(budget)
    if isinstance(value, int):
        return value
    return max(1, math.floor(length * float(value) + 1e-9))


def is_everything(budget: int | float) -> bool:
    """Whether a budget is the share 1.0; 1 is a slot."""
    value = number_of(budget)
    return isinstance(value, float) and value == 1.0


def share_of(budget: Number, length: Int32[Array, " b"]) -> Float32[Array, " b"]:
    """A budget inside a program, slots or a share, as a share of `length` tokens, at most 1."""
    budget = jnp.asarray(budget)
    share = budget / length if jnp.issubdtype(budget.dtype, jnp.integer) else jnp.broadcast_to(budget, length.shape)
    return jnp.minimum(share, 1.0).astype(jnp.float32)


def whole_share(count: Number, share: Number) -> Int32[Array, "*x"]:
    """floor(count · share) inside a program, with room for a share that is a decimal rounded to float32: 0.29 of 100 is 29.

    A product that lies less than 2^-23 of itself below a whole number is that number; up to 4,096 tokens no other share in
    thousandths is.
    """
    return jnp.floor(count * share * (1 + 2.0**-23) + 1e-6).astype(jnp.int32)


def asked_in(budget: Number, length: Int32[Array, " b"]) -> Int32[Array, " b"]:
    """`slots_of` inside a program, in float32: a whole number as it is, a share as floor(share · length), at least 1."""
    if jnp.issubdtype(jnp.result_type(budget), jnp.integer):
        return jnp.broadcast_to(jnp.asarray(budget, jnp.int32), length.shape)
    return jnp.maximum(whole_share(length, jnp.asarray(budget, jnp.float32)), 1)


def slots_in(budget: Number, length: Int32[Array, " b"]) -> Int32[Array, " b"]:
    """A budget inside a program as slots that `length` tokens fill, at least 1."""
    return jnp.clip(asked_in(budget, length), 1, length)
