"""A number that tells one model's weights from another's of equal shape, cheap enough to be asked for at every call."""

import weakref
from collections.abc import Mapping, Sequence
from threading import local
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree, UInt32

from kvjax.protocols import LanguageModel

#: The mark of what is not known: a cache of the pure core, whose weights may be traced.
UNKNOWN = 0
#: Numbers read of every parameter.
_READ = 8


def mark_of(params: PyTree) -> np.uint32:
    """The mark of weights: of the first numbers of every parameter, so that a large model is not read through.

    mark = 1 + (Σ_i (2 i + 1) bits(x_i) + s) mod 2³² - 1, over the first 8 numbers x of every parameter's first row; s tells the
    same weights apart by which layers share a cache, 0 where none do.

    Two models that differ in one of the others alone have one mark; `parameter_digest`, which files carry, reads every weight.

    Args:
        params: a model's parameters, wherever they are.

    Returns:
        The mark; `UNKNOWN` of parameters that are traced.
    """
    leaves = jax.tree.leaves(params)
    if any(isinstance(x, jax.core.Tracer) for x in leaves):
        return np.uint32(UNKNOWN)
    if not _last.is_of(leaves):
        _last.set(leaves, int(_sum(params)))
    return np.uint32((_last.words + shared(params)) % (2**32 - 1) + 1)


def shared(params: PyTree) -> int:
    """A checksum of how many layers read each cache, where `params["layers"]` holds them as tuples; 0 where none is read by two."""
    layers = params.get("layers", ()) if isinstance(params, Mapping) else ()
    counts = tuple(len(layer) if isinstance(layer, tuple) else 1 for layer in layers)
    return crc32(repr(counts).encode()) if max(counts, default=1) > 1 else 0


class _Last(local):
    """The sum that was asked for last on this thread, and the very arrays it is of, as long as they are there."""

    arrays: tuple[weakref.ref, ...] = ()
    words: int

    def is_of(self, leaves: Sequence[Array]) -> bool:
        """Whether it is of these arrays. Only those of JAX cannot have changed since."""
        many = len(leaves)
        return 0 < many == len(self.arrays) and all(ref() is x for ref, x in zip(self.arrays, leaves, strict=True))

    def set(self, leaves: Sequence[Array], words: int) -> None:
        """Keep it; of nothing, where an array may change in place."""
        self.words = words
        self.arrays = tuple(map(weakref.ref, leaves)) if all(isinstance(x, jax.Array) for x in leaves) else ()


_last = _Last()


@jax.jit
def _sum(params: PyTree) -> UInt32[Array, ""]:
    return weighed(jnp.concatenate([words_of(_first(x)) for x in jax.tree.leaves(params)]))


def _first(x: Array) -> Array:
    """The numbers of a parameter that are read; wider ones than 32 bits as float32."""
    found = x[(0,) * (x.ndim - 1)][:_READ]
    return found.astype(jnp.float32) if x.dtype.itemsize > 4 else found


def words_of(x: Array) -> UInt32[Array, " n"]:
    """The bits of each number, of 8, 16 or 32, in the array's order."""
    kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    return lax.bitcast_convert_type(x, kind).reshape(-1).astype(jnp.uint32)


def weighed(words: UInt32[Array, " n"]) -> UInt32[Array, ""]:
    """Σ_i (2 i + 1) words_i in 32-bit arithmetic: the factors are odd, so that no change of a single word leaves it alone."""
    return (words * (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1)).sum(dtype=jnp.uint32)


def made_with(lm: LanguageModel, made_by: UInt32[np.ndarray, "*b"]) -> bool:
    """Whether every row was made with the model's weights, as far as both are known."""
    mark = mark_of(lm.params)
    return bool(mark == UNKNOWN or np.isin(made_by, (UNKNOWN, mark)).all())


def check_mark(lm: LanguageModel, made_by: UInt32[np.ndarray, "*b"]) -> None:
    """Raise ValueError where a row was made with other weights than the model's; one that does not know passes."""
    if not made_with(lm, made_by):
        raise ValueError(
            "the cache was made with other weights than this model has: prefill with this model; to go on with another's cache "
            "all the same, decode cache.replace(made_by=jax.numpy.zeros_like(cache.made_by))"
        )
