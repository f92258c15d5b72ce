"""Whether a cache holds slots of the shapes that a storage has."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from kvjax.encoder import Encoder
from kvjax.protocols import Cache


def holds(cache: Cache, encode: Encoder, d: int) -> bool:
    """Whether the cache's rows and exact tails are of the shapes that `encode` gives to heads of `d` channels."""
    rows, tails = _forms.eval_shape(encode, d)
    held = jax.tree.leaves(cache.k) + (jax.tree.leaves(cache.v) if cache.placement.on_device else [cache.v])
    return _shapes(rows, 1) == _shapes(held, 1) and _shapes(tails, 3) == _shapes(jax.tree.leaves(cache.tails), 3)


@partial(jax.jit, static_argnames="d")
def _forms(encode: Encoder, d: int) -> tuple[list[Array], list[Array]]:
    """A page of rows, and tails. Asked for shapes alone: they are worked out once for storages of one kind."""
    rows = [codec.rows(encode.page, d, jnp.float32) for codec in encode.codecs]
    return jax.tree.leaves(rows), jax.tree.leaves(encode.empty_tails((1, 1, 1), d, jnp.float32))


def _shapes(arrays: Sequence[PyTree], axes: int) -> list[tuple[int, ...]]:
    """Shapes behind the first axes."""
    return [x.shape[axes:] for x in arrays]
