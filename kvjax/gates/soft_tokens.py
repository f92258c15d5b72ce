"""Learned tokens that are read after a prompt: embeddings in place of ids, low-rank updates of what reads them."""

import jax
import jax.numpy as jnp
from flax import struct
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax
from jaxtyping import Array, Float, Float32, PyTree

from kvjax.protocols import Backbone


def updated(weight: Float[Array, "o i"], down: Float[Array, "r i"], up: Float[Array, "o r"], scale: Float32[Array, ""]) -> Array:
    """W + scale · B A, summed in float32, in the weight's dtype."""
    low_rank = jnp.einsum("or,ri->oi", up, down, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    return (weight.astype(jnp.float32) + scale * low_rank).astype(weight.dtype)


def linear_shapes(lm: Backbone) -> dict[str, tuple[int, int]]:
    """(out, in) of a layer's linear maps by their path, such as attention.q.

    Raises:
        ValueError: a model of which layers share a cache.
    """
    first = lm.params["layers"][0]
    if not isinstance(first, dict):
        raise ValueError("learned tokens are of a model whose layers all have a cache: begin with the model as it was loaded")
    return {path.removesuffix(".weight"): x.shape for path, x in flatten_dict(first, sep=".").items() if x.ndim == 2}


def update_shapes(lm: Backbone, rank: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the updates of all layers: A as PATH.down, B as PATH.up."""
    layers, found = lm.decoder.layers, {}
    for path, (o, i) in linear_shapes(lm).items():
        found |= {f"{path}.down": (layers, rank, i), f"{path}.up": (layers, o, rank)}
    return found


def init_soft_tokens(lm: Backbone, key: Array, tokens: int = 32, rank: int = 8) -> PyTree:
    """Untrained weights: embeddings spread like the model's own, and an update of every linear layer that is nothing yet.

    Returns:
        {"tokens": P [p e], "layers": the linear maps as the model names them, each {"down": A [l r i], "up": B [l o r]}}, float32;
        A is normal with variance 1 / i, B is 0.
    """
    shapes = update_shapes(lm, rank)
    embed, *keys = jax.random.split(key, 1 + len(shapes))
    drawn = {
        path: jax.random.normal(key, shape) * shape[-1] ** -0.5 if path.endswith("down") else jnp.zeros(shape)
        for key, (path, shape) in zip(keys, shapes.items(), strict=True)
    }
    spread = jnp.std(lm.params["embed"]["weight"].astype(jnp.float32))
    tokens = spread * jax.random.normal(embed, (tokens, lm.decoder.config.width))
    return {"tokens": tokens, "layers": unflatten_dict(drawn, sep=".")}


def check_soft_tokens(lm: Backbone, weights: PyTree) -> None:
    """Raise ValueError where the weights are not this model's, naming all that differs."""
    given = {path: x.shape for path, x in flatten_dict(weights, sep=".").items()}
    size, rank = (next((s[-2] for p, s in given.items() if p.endswith(end)), 0) for end in ("tokens", "down"))
    wanted = {f"layers.{path}": shape for path, shape in update_shapes(lm, rank).items()}
    wanted["tokens"] = (size, lm.decoder.config.width)
    differ = sorted(name for name in wanted | given if wanted.get(name) != given.get(name))
    if differ:
        told = "; ".join(f"{name}: {wanted.get(name)} wanted, {given.get(name)} given" for name in differ)
        raise ValueError(f"these learned tokens are not this model's ({told}): use those trained with it")


@struct.dataclass
class SoftTokens:
    """What a second pass reads in place of ids (`kvjax.prefill.probe.probe_row`).

    Attributes:
        tokens: their embeddings.
        update: A and B of every linear map, each leaf [l, ...].   scale: alpha / r.
    """

    tokens: Float[Array, "p e"]
    update: PyTree
    scale: Float32[Array, ""]

    @classmethod
    def of(cls, weights: PyTree, alpha: float) -> "SoftTokens":
        weights = jax.tree.map(jnp.asarray, weights)
        rank = jax.tree.leaves(weights["layers"])[0].shape[1]
        return cls(tokens=weights["tokens"], update=weights["layers"], scale=jnp.float32(alpha / rank))

    def at(self, layer: int) -> "SoftTokens":
        """As one layer uses them."""
        return self.replace(update=jax.tree.map(lambda x: x[layer], self.update))

    def read_by(self, weights: PyTree) -> PyTree:
        """A layer's weights as these tokens, and no others, meet them."""
        flat, update = flatten_dict(weights, sep="."), flatten_dict(self.update, sep=".")
        for path in {path.rpartition(".")[0] for path in update}:
            name = f"{path}.weight"
            flat[name] = updated(flat[name], update[f"{path}.down"], update[f"{path}.up"], self.scale)
        return unflatten_dict(flat, sep=".")
