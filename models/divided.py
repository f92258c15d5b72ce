"""A model over the devices of a mesh: KV heads, columns of the MLP and the vocabulary, in equal parts along the axis "heads".

Which weights: q, k, v, gate and up by rows (their outputs), o and down by columns (their inputs), embedding and head by rows of the
vocabulary where it divides, the rest on every device. A layer then adds up twice over the devices (Shoeybi et al. 2019).
"""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.cache.mesh import HEADS, check_divides, sizes
from models.decoder import Decoder
from models.layers import Block, linear

_ROWS, _COLUMNS, _SAME = PartitionSpec(HEADS), PartitionSpec(None, HEADS), PartitionSpec()
_BY_NAME = {"q": _ROWS, "k": _ROWS, "v": _ROWS, "gate": _ROWS, "up": _ROWS, "o": _COLUMNS, "down": _COLUMNS}


@dataclass(frozen=True)
class Divided(Decoder):
    """One device's part of a decoder, inside `jax.shard_map`: its config says how many heads and columns the device has.

    Attributes:
        axis: the mesh axis.   by_vocabulary: whether the embedding and the head are divided.
    """

    axis: str = HEADS
    by_vocabulary: bool = False

    def embed(self, params: PyTree, tokens: Int32[Array, "b t"]) -> Float[Array, "b t e"]:
        """Each device looks up the tokens it has; a token that none has is NaN."""
        if not self.by_vocabulary:
            return super().embed(params, tokens)
        weight = params["embed"]["weight"]
        own = tokens - lax.axis_index(self.axis) * weight.shape[0]
        there = (own >= 0) & (own < weight.shape[0])
        x = jnp.where(there[..., None], weight[jnp.clip(own, 0, weight.shape[0] - 1)], 0)
        known = (tokens >= 0) & (tokens < self.config.vocab)
        return jnp.where(known[..., None], lax.psum(x, self.axis), jnp.nan)

    def layer(self, weights: PyTree, x: Float[Array, "b t e"], positions: Int32[Array, "b t"], attend):
        """The sums of both projections onto the residual stream are over all devices."""
        block = Block(self.config, x.dtype, total=partial(lax.psum, axis_name=self.axis))
        return block.apply({"params": self._bias_once(weights)}, x, positions, attend)

    def _bias_once(self, weights: PyTree) -> PyTree:
        """The bias of the output projection on the first device alone, since outputs are added up."""
        if not self.config.out_bias:
            return weights
        o = weights["attention"]["o"]
        bias = jnp.where(lax.axis_index(self.axis) == 0, o["bias"], 0)
        return {**weights, "attention": {**weights["attention"], "o": {**o, "bias": bias}}}

    def unembed(self, params: PyTree, x: Float[Array, "b t e"]) -> Float32[Array, "b t v"]:
        """Each device's logits, put together."""
        if not self.by_vocabulary:
            return super().unembed(params, x)
        head = params["embed"] if self.config.tied else params["head"]
        logits = linear(self.norm(params, x), head["weight"], dtype=jnp.float32)
        return lax.all_gather(logits, self.axis, axis=2, tiled=True)


def divided(decoder: Decoder, devices: int) -> Divided:
    """One device's part of a decoder. Raises ValueError where so many devices do not divide its heads, or its MLP."""
    config = decoder.config
    for what, has in (("KV heads", config.heads), ("columns of the MLP", config.hidden)):
        if has % devices:
            raise ValueError(f"{devices} devices do not divide {has} {what}: use a number that does")
    part = replace(config, heads=config.heads // devices, hidden=config.hidden // devices)
    return Divided(part, HEADS, by_vocabulary=config.vocab % devices == 0)


def shardings(decoder: Decoder, mesh: Mesh) -> PyTree:
    """Where each parameter lies, in the structure of the parameters.

    Raises:
        ValueError: a mesh that does not divide the KV heads or the MLP; a decoder whose layers share a cache.
    """
    if type(decoder) is not Decoder:
        raise ValueError(f"a {type(decoder).__name__} is not divided over devices: use the model as it was loaded")
    check_divides(mesh, sizes(mesh)[0], decoder.heads)
    by_vocabulary = divided(decoder, sizes(mesh)[1]).by_vocabulary
    skeleton = jax.eval_shape(decoder.init, jax.random.key(0))

    def where(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        names = [str(getattr(key, "key", "")) for key in path]
        if names[0] in ("embed", "head"):
            return NamedSharding(mesh, _ROWS if by_vocabulary else _SAME)
        spec = next((_BY_NAME[name] for name in names if name in _BY_NAME), _SAME)
        return NamedSharding(mesh, _SAME if len(leaf.shape) < len(spec) else spec)

    return jax.tree_util.tree_map_with_path(where, skeleton)
