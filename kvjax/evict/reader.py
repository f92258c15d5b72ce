"""How an eviction's stages see the slots of a cache."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32

from kvjax.cache import KVCache
from kvjax.policy import Policy
from kvjax.types import Layer
from kvjax.view import LayerView


@dataclass(frozen=True)
class Reader:
    """A policy, its encoder, the dtype of the keys and values it sees, and the tokens of text so far."""

    policy: Policy
    encode: Any
    dtype: Any
    position: Int32[Array, " b"]

    def view(self, cache: KVCache, layer: Layer, slots: Int32[Array, "b h n"], valid: Bool[Array, "b h n"]) -> LayerView:
        """The dense view of a layer's slots; keys and values are gathered only if a stage reads them."""
        encode, take = self.encode.at(layer), lambda x: jnp.take(x, slots, axis=0, mode="clip")
        stats = {name: take(x) for name, x in cache.stats.items()}
        k, v = encode.decode(take(cache.k), self.dtype), encode.values.take(cache.v, slots).astype(self.dtype)
        return LayerView(k=k, v=v, pos=take(cache.pos).astype(jnp.int32), valid=valid, length=self.position, stats=stats)


def zeros(f: Callable, x: Any) -> Any:
    """Zeros for everything that f(x) gives."""
    return jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), jax.eval_shape(f, x))
