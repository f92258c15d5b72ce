"""A gate's weights as the tables of an artefact: every leaf by its path, `up.kernel`."""


import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from kvjax.artefacts.artefact import Artefact


def tables_of(weights: PyTree, dtype: DTypeLike = np.float32) -> dict[str, np.ndarray]:
    """Leaves of nested dicts by their path, in `dtype`; the paths' keys hold no dot."""
    leaves = jax.tree_util.tree_leaves_with_path(weights)
    return {jax.tree_util.keystr(at, simple=True, separator="."): np.asarray(x).astype(dtype) for at, x in leaves}


def weights_of(artefact: Artefact) -> dict[str, object]:
    """The nested dicts that `tables_of` was given, float32."""
    made: dict[str, object] = {}
    for path, x in artefact.tables.items():
        *parents, name = path.split(".")
        inner = made
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = np.asarray(x, np.float32)
    return made
