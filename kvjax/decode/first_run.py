"""Whether this process has run a program before: what is compiled when first run is compiled outside the time that is told."""

from collections.abc import Hashable

import jax
import numpy as np
from jaxtyping import PyTree

_seen: set[Hashable] = set()


def first_run(*arguments: PyTree) -> bool:
    """Whether a program for arguments of this kind has not been run before; from now on it has.

    Args:
        arguments: what it is compiled for: arrays, of which shapes and dtypes count, and hashable values, which count themselves.
    """
    leaves, form = jax.tree.flatten(arguments)
    kind = form, tuple((x.shape, x.dtype) if isinstance(x, jax.Array | np.ndarray | np.generic) else x for x in leaves)
    new = kind not in _seen
    _seen.add(kind)
    return new
