"""How an eviction's stages see a step and the slots of a cache."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.cache import KVCache
from kvjax.evict.seen import Seen
from kvjax.evidence import Evidence
from kvjax.kernels.ragged_attention import probabilities
from kvjax.policy import Policy
from kvjax.types import Layer
from kvjax.view import LayerView


@dataclass(frozen=True)
class Reader:
    """What a policy reads by after a step.

    Attributes:
        policy, encode: the policy and its encoder.
        dtype: of the keys and values it sees.
        windows: each layer's sliding window.
        cap: a bound on the slots of a region.
        offset, count: position of the step's first token and its tokens, by row.
    """

    policy: Policy
    encode: Any
    dtype: Any
    windows: tuple[int | None, ...]
    cap: int
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]

    def evidence(self, cache: KVCache, layer: Layer, seen: Seen, order: Int32[Array, "b h n"] | None = None) -> Evidence:
        """A layer's evidence: what is carried, and what is of the step alone, by slot of the region or in the `order` of a view."""
        block = StepBlock(reader=self, cache=cache, layer=layer, seen=seen, order=order)
        now = {need.key: need.now(block) for need in self.policy.score.needs if not need.carried}
        return seen.evidence.replace(data={**seen.evidence.data, **now})

    def view(self, cache: KVCache, layer: Layer, slots: Int32[Array, "b h n"], valid: Bool[Array, "b h n"]) -> LayerView:
        """The dense view of a layer's slots; keys and values are gathered only if a stage reads them."""
        encode, take = self.encode.at(layer), lambda x: jnp.take(x, slots, axis=0, mode="clip")
        stats = {name: take(x) for name, x in cache.stats.items()}
        k, v = encode.decode(take(cache.k), self.dtype), encode.values.take(cache.v, slots).astype(self.dtype)
        return LayerView(k=k, v=v, pos=take(cache.pos).astype(jnp.int32), valid=valid, length=self.offset + self.count, stats=stats)


@dataclass(frozen=True)
class StepBlock:
    """The tokens of a step as needs of the step alone see them, after its last layer."""

    reader: Reader
    cache: KVCache
    layer: Layer
    seen: Seen
    order: Int32[Array, "b h n"] | None

    @property
    def heads(self) -> Any:
        """Of the fields of `Heads`, those that such needs read."""
        return SimpleNamespace(**self.seen.heads)

    @property
    def offset(self) -> Int32[Array, " b"]:
        return self.reader.offset

    @property
    def count(self) -> Int32[Array, " b"]:
        return self.reader.count

    def column_sums(self) -> Float32[Array, "b h g n"]:
        reader, t = self.reader, jnp.arange(self.heads.q.shape[3], dtype=jnp.int32)
        positions, encode = self.offset[:, None] + t, reader.encode.at(self.layer)
        windows = sorted(set(reader.windows), key=str)

        def scores(window):
            return encode.scores(self.heads.q, self.cache, self.layer, positions=positions, window=window, cap=reader.cap)

        which = jnp.asarray([windows.index(window) for window in reader.windows])[self.layer]
        p = probabilities(lax.switch(which, [partial(scores, window) for window in windows]), self.seen.lse)
        real = (t < self.count[:, None])[:, None, None, :, None]
        sums = jnp.where(real, p, 0.0).sum(3)
        return sums if self.order is None else jnp.take_along_axis(sums, self.order[:, :, None], -1)


def zeros(f: Callable, x: Any) -> Any:
    """Zeros for everything that f(x) gives."""
    return jax.tree.map(lambda y: jnp.zeros(y.shape, y.dtype), jax.eval_shape(f, x))
