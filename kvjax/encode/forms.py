"""Whether a cache holds slots of the shapes that a storage has, and which of them are numbers as the model computes them."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from kvjax.encoder import Encoder
from kvjax.protocols import Cache


def holds(cache: Cache, encode: Encoder, d: int) -> bool:
    """Whether the cache's rows and exact tails are of the shapes that `encode` gives to heads of `d` channels."""
    (rows, tails), (held, exact) = _forms.eval_shape(encode, d), _held(cache)
    return _shapes(rows, 1) == _shapes(held, 1) and _shapes(tails, 3) == _shapes(exact, 3)


def raw(cache: Cache, encode: Encoder, d: int) -> list[PyTree]:
    """Rows and exact tails that `encode` has in the model's dtype: those that two dtypes make two of."""
    wide, narrow = (sum(_forms.eval_shape(encode, d, dtype), []) for dtype in ("float32", "bfloat16"))
    return [x for x, *forms in zip(sum(_held(cache), []), wide, narrow, strict=True) if forms[0].dtype != forms[1].dtype]


def _held(cache: Cache) -> tuple[list[PyTree], list[PyTree]]:
    """The cache's rows, in the order of `_forms`, and its tails."""
    values = jax.tree.leaves(cache.v) if cache.placement.on_device else [cache.v]
    return jax.tree.leaves(cache.k) + values, jax.tree.leaves(cache.tails)


@partial(jax.jit, static_argnames=("d", "dtype"))
def _forms(encode: Encoder, d: int, dtype: str = "float32") -> tuple[list[Array], list[Array]]:
    """A page of rows, and tails. Asked for shapes alone: they are worked out once for storages of one kind."""
    rows = [codec.rows(encode.page, d, jnp.dtype(dtype)) for codec in encode.codecs]
    return jax.tree.leaves(rows), jax.tree.leaves(encode.empty_tails((1, 1, 1), d, jnp.dtype(dtype)))


def _shapes(arrays: Sequence[PyTree], axes: int) -> list[tuple[int, ...]]:
    """Shapes behind the first axes."""
    return [x.shape[axes:] for x in arrays]
