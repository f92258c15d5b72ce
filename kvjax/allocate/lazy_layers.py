"""Layers that look only at both ends keep only those (SimLayerKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.allocate.uniform import held
from kvjax.evidence import Evidence, Need, WindowQueries
from kvjax.kernels.window_scores import window_scores
from kvjax.ranges import Count
from kvjax.stage import Allocator
from kvjax.types import Number
from kvjax.view import LayerView, Ranking


def mass_at_ends(
    p: Float32[Array, "b h g n"], pos: Int32[Array, "b h n"], length: Int32[Array, " b"], *, sinks: Number, recent: Number
) -> Float32[Array, " b"]:
    """Mean over heads of the last query's probability on the first `sinks` and the last `recent` of the tokens before its own."""
    last = (length - 1)[:, None, None]
    ends = (pos < last) & ((pos < sinks) | (pos >= last - recent))
    return jnp.where(ends[:, :, None], p, 0.0).sum(-1).mean((1, 2))


@struct.dataclass
class LazyLayers(Allocator):
    """b_l = sinks + recent - 1 where the mass at both ends exceeds the threshold, everything elsewhere; no budget is read.

    A prompt of at most sinks + recent + 1 tokens stays whole.

    Args:
        sinks, recent: tokens at both ends.
        threshold: mass from which on a layer is lazy; 1 leaves all layers whole, a negative one makes all lazy.

    Source: SimLayerKV, arXiv 2410.13846, section 3.
    """

    exact: ClassVar[bool] = False
    by_layer: ClassVar[bool] = True
    given: ClassVar[bool] = True
    sinks: Count = 4
    recent: Count = 1024
    threshold: Number = 0.9

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WindowQueries(1)})

    def measure(self, view: LayerView, evidence: Evidence) -> Float32[Array, " b"]:
        p = window_scores(
            evidence.window_queries(1), view.k, pos=view.pos, valid=view.valid, length=evidence.length, window=evidence.window
        )
        return mass_at_ends(p, view.pos, evidence.length, sinks=self.sinks, recent=self.recent)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        lazy = (ranking.measured > self.threshold)[..., None] & (n > self.sinks + self.recent + 1)
        return jnp.where(lazy, jnp.maximum(self.sinks + self.recent - 1, 1), n).astype(jnp.int32)
