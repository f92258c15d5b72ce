"""A gate's weights as the tables of an artefact: every leaf by its path, `up.kernel`."""

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from kvjax.artefacts.artefact import Artefact


def tables_of(weights: PyTree, dtype: DTypeLike = np.float32) -> dict[str, np.ndarray]:
    """Leaves of nested dicts by their path, in `dtype`; the paths' keys hold no dot."""
    return {path_of(at): np.asarray(x).astype(dtype) for at, x in jax.tree_util.tree_leaves_with_path(weights)}


def path_of(keys: jax.tree_util.KeyPath) -> str:
    """A leaf's path as a table is named."""
    return jax.tree_util.keystr(keys, simple=True, separator=".")


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
