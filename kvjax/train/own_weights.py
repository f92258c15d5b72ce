"""Training a model's own parameters: what is learned is a change of them, nothing at the start."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from kvjax.artefacts.artefact import ArtefactLike, resolve
from kvjax.protocols import LanguageModel


def no_change(model: object) -> PyTree:
    """Zeros in float32, as many as the decoder `model` has parameters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)


def changed(params: PyTree, change: PyTree) -> PyTree:
    """params + change, summed in float32, in the parameters' dtype."""
    return jax.tree.map(lambda x, delta: (x.astype(jnp.float32) + delta).astype(x.dtype), params, change)


def trained(lm: LanguageModel, artefact: ArtefactLike, method: str) -> LanguageModel:
    """The model with the parameters that `kvjax train METHOD` made of it.

    Args:
        lm: the model as it was before training: its sizes and its name are compared.
        artefact: an Artefact, or its folder.   method: whose artefact it has to be.

    Raises:
        FileNotFoundError, ValueError: no artefact there, or that of another method or model.

    Example:
        better = kvjax.train.trained(lm, "out/shared", "stochastic_kv_routing")
        half = models.share_layers(better, every=2)
    """
    tables = resolve(artefact, method, lm).tables

    def found(path: tuple, x: jax.Array) -> jax.Array:
        return jnp.asarray(tables[jax.tree_util.keystr(path, simple=True, separator=".")], x.dtype)

    return lm.replace(params=jax.tree_util.tree_map_with_path(found, lm.params))
