"""How slots are stored: keys and values, each by a codec, and values where their placement says."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.codec import AsIs, Codec, LayerRegions
from kvjax.encode.at_reading import scores_at_reading
from kvjax.encode.positions import Absolute
from kvjax.evidence import Need
from kvjax.kernels.append import append, behind
from kvjax.kernels.ragged_attention import attention_with_weights, log_denominator, probabilities, ragged_attention
from kvjax.placement import OnDevice
from kvjax.stage import Encoder
from kvjax.types import Keys, Layer, Queries, Values


@struct.dataclass
class Stored(Encoder):
    """Keys by one codec, values by another.

    Args:
        keys, values: `kvjax.codec`: AsIs(), Cast(dtype), ProductQuantized(codebook, origin).
        placement: where values live: OnDevice(), or in host memory with OnHost() or ByCallback(); coded values, on the device.
        positions: where keys and queries stand: Absolute(), InCache(), Clamped(limit) or Rerotated().

    Where both are dense and on the device, attention is one fused kernel. Otherwise scores and weighted sums are taken apart,
    over some slots decoded at a time. Raises: ValueError for coded values elsewhere than on the device.
    """

    keys: Codec = AsIs()
    values: Codec = AsIs()
    placement: Any = OnDevice()
    positions: Any = Absolute()

    def __post_init__(self):
        if isinstance(self.values, Codec) and not self.values.dense and not self.placement.on_device:
            raise ValueError(f"values coded by {self.values!r} live on the device; got placement={self.placement!r}")

    @property
    def dense(self) -> bool:
        return self.keys.dense and self.values.dense and self.placement.on_device and not self.positions.at_reading

    @property
    def needs(self) -> frozenset[Need]:
        return self.positions.needs

    def at(self, layer: Layer) -> "Stored":
        return self.replace(keys=self.keys.at(layer), values=self.values.at(layer))

    def check(self, model: Any, length: int, mean_budget: int) -> None:
        self.keys.check(model, length, mean_budget)
        self.values.check(model, length, mean_budget)

    def empty(self, slots: int, d: int, dtype: Any) -> tuple[PyTree, Any]:
        if not self.values.dense:
            return self.keys.rows(slots, d, dtype), self.values.rows(slots, d, dtype)
        like = jax.eval_shape(lambda: self.values.rows(slots, d, dtype))
        return self.keys.rows(slots, d, dtype), self.placement.empty(slots, d, like.dtype)

    def take(self, cache: Any, layer: Layer, slots: Int32[Array, "b h n"], dtype: Any) -> tuple[Keys, Values]:
        kp, vp = cache.fitted_of(layer)
        rows = lambda pool: jax.tree.map(lambda x: jnp.take(x, slots, axis=0, mode="clip"), pool)  # noqa: E731
        k = self.keys.decode(rows(cache.k), dtype, kp)
        if self.values.dense:
            return k, self.placement.take(cache.v, slots).astype(dtype)
        return k, self.values.decode(rows(cache.v), dtype, vp)

    def append(self, cache: Any, inputs: AttentionInputs, context: AttendContext, count: Int32[Array, " b"]) -> Any:
        layer, (kp, vp) = context.layer, cache.fitted_of(context.layer)
        start, before = cache.start[layer], cache.length[layer] - count[:, None]
        pos = jnp.broadcast_to(context.positions[:, None], inputs.k.shape[:3])
        k = append(cache.k, self.keys.encode(inputs.k, pos, kp), start, before, count)
        if not self.values.dense:
            return cache.replace(k=k, v=append(cache.v, self.values.encode(inputs.v, pos, vp), start, before, count))
        t, d = inputs.k.shape[2:]
        where = behind(start, before, count, t=t, slots=cache.slots).reshape(-1)
        return cache.replace(k=k, v=self.placement.append(cache.v, where, inputs.v.reshape(-1, d)))

    def store_values(self, v: Any, slots: Int32[Array, " m"], rows: PyTree) -> Any:
        """The store of values with rows in these slots; a slot beyond it is left out, or slack."""
        if self.values.dense:
            return self.placement.append(v, slots, rows)
        return jax.tree.map(lambda x, new: x.at[slots].set(new, mode="drop"), v, rows)

    def scores(self, q: Queries, cache: Any, context: AttendContext):
        at, params = _regions(cache, cache.k, context), cache.fitted_of(context.layer)[0]
        if self.positions.at_reading:
            return scores_at_reading(self.keys, self.positions, q, at, params, context.rope)
        return self.keys.scores(q, at, params)

    def weighted_sum(
        self, cache: Any, context: AttendContext, weights: Float32[Array, "b h g t n"], d: int
    ) -> Float32[Array, "b h g t d"]:
        if self.values.dense:
            return self.placement.weighted_sum(cache.v, cache.start[context.layer], weights)
        at = _regions(cache, cache.v, context).replace(padded_slots=weights.shape[-1])
        return self.values.weighted_sum(at, weights, d, cache.fitted_of(context.layer)[1])

    def attention(self, q: Queries, cache: Any, context: AttendContext) -> tuple[Queries, Float32[Array, "b h g t"]]:
        if self.dense:
            where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
            return ragged_attention(q, cache.k, cache.v, *where, bias=cache.bias, window=context.window)
        scores = self.scores(q, cache, context)
        lse = log_denominator(scores)
        out = self.weighted_sum(cache, context, probabilities(scores, lse), q.shape[-1])
        return out.astype(q.dtype), lse

    def attention_with_weights(
        self, q: Queries, cache: Any, context: AttendContext, *, heads: tuple[int, ...], upto: Int32[Array, "b p"], n: int
    ) -> tuple[Array, Array, Float[Array, "b p g n"]]:
        if not self.dense or context.window is not None:
            return super().attention_with_weights(q, cache, context, heads=heads, upto=upto, n=n)
        where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
        out, lse, a = attention_with_weights(q, cache.k, cache.v, *where, heads=heads, upto=upto, cap=n, bias=cache.bias)
        return out, lse, a[..., 0, :]


def _regions(cache: Any, pool: PyTree, context: AttendContext) -> LayerRegions:
    """A layer's regions of one of the cache's pools."""
    layer = context.layer
    return LayerRegions(
        pool=pool, pos=cache.pos, start=cache.start[layer], length=cache.length[layer], positions=context.positions,
        padded_slots=context.padded_slots, window=context.window, bias=cache.bias,
    )  # fmt: skip
