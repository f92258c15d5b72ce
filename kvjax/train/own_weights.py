"""Training a model's own parameters: what is learned is a change of them, nothing at the start."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def no_change(model: object) -> PyTree:
    """Zeros in float32, as many as the decoder `model` has parameters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), shapes)


def changed(params: PyTree, change: PyTree) -> PyTree:
    """params + change, summed in float32, in the parameters' dtype."""
    return jax.tree.map(lambda x, delta: (x.astype(jnp.float32) + delta).astype(x.dtype), params, change)
