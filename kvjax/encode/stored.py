"""How slots are stored: keys and values, each by a codec, the newest exact if a window says so, and values where they live.

Every token has a slot of its region, and room for its codes, whatever is exact. Beside coded keys, or values, a `Tail` holds the
exact ones: slots at or above its count, and the sinks, are read from there. What a step pushes out of the window is coded after
the step's last layer, so that the step itself still sees it exactly.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.codec import AsIs, Codec, LayerRegions
from kvjax.codec.decoded import biased
from kvjax.encode.at_reading import scores_at_reading
from kvjax.encode.forms import holds, raw
from kvjax.encode.packed import packed_sides
from kvjax.encode.positions import Absolute, PositionPolicy
from kvjax.encode.tail import Tail, empty_tail, flush
from kvjax.encode.window import Window, Windows
from kvjax.encoder import Encoder
from kvjax.evidence import Need, union
from kvjax.kernels.append import append, behind
from kvjax.kernels.packed_attention import packed_attention
from kvjax.kernels.ragged_attention import attention_with_weights, log_denominator, probabilities, ragged_attention
from kvjax.kernels.softmax import softmax
from kvjax.placement import OnDevice
from kvjax.protocols import Cache, Decoder
from kvjax.ranges import Whole
from kvjax.types import Keys, Layer, Queries, Values


@struct.dataclass
class Stored(Encoder):
    """Keys by one codec, values by another.

    Args:
        keys, values: `kvjax.codec`: AsIs(), Cast(dtype), ProductQuantized(codebook, origin), Affine(bits, group, reduce).
        placement: where values live: OnDevice(), or in host memory with OnHost() or ByCallback(); coded values, on the device.
        positions: where keys and queries stand: Absolute(), Unrotated(), InCache(), Clamped(limit) or Rerotated().
        window: which of the newest slots stay exact where they are coded: BlockFlush(R), Slide(R), or Windows(keys, values); None
            codes a slot as it comes.
        sinks: first slots of a region that stay exact as well, while there is a window; in a page they count for its range.
        whole: slots come in whole pages alone, as a tier's do (`Tiered`): pages need no window then.

    Where both are dense and on the device, or both are affine codes (values along channels), attention is one fused kernel.
    Otherwise scores and weighted sums are taken apart, over some slots decoded at a time. With a window known tokens are fed one at
    a time, and with a window or pages nothing may be evicted while decoding.
    Raises: ValueError for coded values elsewhere than on the device, for pages that the window's blocks do not fill, for sinks
    without a window.
    """

    keys: Codec = AsIs()
    values: Codec = AsIs()
    placement: OnDevice = OnDevice()
    positions: PositionPolicy = Absolute()
    window: Window | Windows | None = None
    sinks: Whole = struct.field(pytree_node=False, default=0)
    whole: bool = struct.field(pytree_node=False, default=False)

    def __post_init__(self):
        if not (isinstance(self.keys, Codec) and isinstance(self.values, Codec)):
            return  # placeholders of a pytree transformation
        if not self.values.dense and not self.placement.on_device:
            raise ValueError(f"values coded by {self.values!r} live on the device; got placement={self.placement!r}")
        for codec, window in zip(self.codecs, self.windows, strict=True):
            if codec.page > 1 and not self.whole and (window is None or window.block % codec.page):
                raise ValueError(
                    f"{codec!r} codes {codec.page} slots at once: give it a window of whole pages, such as "
                    f"BlockFlush({4 * codec.page}); got {window!r}"
                )
        if self.sinks < 0 or (self.sinks and self.windows == (None, None)):
            raise ValueError(f"{self.sinks} exact sinks need coded slots and a window beside them, if only Slide(0)")

    @property
    def codecs(self) -> tuple[Codec, Codec]:
        """Of keys and of values."""
        return self.keys, self.values

    @property
    def windows(self) -> tuple[Window | None, Window | None]:
        """The schedules of keys and of values; None where they are dense, or coded as they come."""
        given = self.window if isinstance(self.window, Windows) else Windows(self.window, self.window)
        return None if self.keys.dense else given.keys, None if self.values.dense else given.values

    @property
    def dense(self) -> bool:
        return self.keys.dense and self.values.dense and self.placement.on_device and not self.positions.at_reading

    @property
    def needs(self) -> frozenset[Need]:
        return union(self.positions.needs, self.keys.needs, self.values.needs)

    @property
    def stepwise(self) -> bool:
        return self.windows != (None, None)

    @property
    def page(self) -> int:
        return math.lcm(self.keys.page, self.values.page)

    @property
    def movable(self) -> bool:
        return not self.stepwise and self.page == 1 and not self.together

    @property
    def together(self) -> bool:
        return any(codec.together for codec in self.codecs)

    def at(self, layer: Layer) -> "Stored":
        return self.replace(keys=self.keys.at(layer), values=self.values.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.keys.check(model, length, mean_budget)
        self.values.check(model, length, mean_budget)

    def empty(self, slots: int, d: int, dtype: DTypeLike) -> tuple[PyTree, PyTree]:
        if not self.values.dense:
            return self.keys.rows(slots, d, dtype), self.values.rows(slots, d, dtype)
        like = jax.eval_shape(lambda: self.values.rows(slots, d, dtype))
        return self.keys.rows(slots, d, dtype), self.placement.empty(slots, d, like.dtype)

    def empty_tails(self, shape: tuple[int, int, int], d: int, dtype: DTypeLike) -> tuple[PyTree, PyTree]:
        """Exact keys and values of regions [L, B, H] that hold nothing; () where there is no window."""
        return tuple(() if window is None else empty_tail(window, self.sinks, shape, d, dtype) for window in self.windows)

    @property
    def words(self) -> str:
        """What codes keys and values, seeds and origins among it; without numbers that may be traced."""
        return repr(jax.tree.map(lambda _: ..., self.codecs))

    def fits(self, cache: Cache, d: int) -> bool:
        """Whether the cache's rows are this storage's codes, and of its shape."""
        return cache.codecs == self.words and holds(cache, self, d)

    def raw(self, cache: Cache, d: int) -> PyTree:
        return raw(cache, self, d)

    def take(self, cache: Cache, layer: Layer, slots: Int32[Array, "b h n"], dtype: DTypeLike) -> tuple[Keys, Values]:
        kp, vp = cache.fitted_of(layer)

        def rows(pool):
            return jax.tree.map(lambda x: jnp.take(x, slots, axis=0, mode="clip"), pool)

        k = self.keys.decode(rows(cache.k), dtype, kp)
        if self.values.dense:
            return k, self.placement.take(cache.v, slots).astype(dtype)
        return k, self.values.decode(rows(cache.v), dtype, vp)

    def append(self, cache: Cache, inputs: AttentionInputs, context: AttendContext, count: Int32[Array, " b"]) -> PyTree:
        layer, fitted = context.layer, cache.fitted_of(context.layer)
        start, before = cache.start[layer], cache.length[layer] - count[:, None]
        pos = jnp.broadcast_to(context.positions[:, None], inputs.k.shape[:3])
        if self.stepwise and inputs.k.shape[2] != 1:
            raise ValueError(f"an exact window takes one token at a time; got {inputs.k.shape[2]}")

        def add(codec: Codec, pool: PyTree, tail: PyTree, x: Keys, params: PyTree) -> tuple[PyTree, PyTree]:
            if isinstance(tail, Tail):
                return pool, tail.put(x, layer, before, count)
            return append(pool, codec.encode(x, pos, params), start, before, count), tail

        k, k_tail = add(self.keys, cache.k, cache.tails[0], inputs.k, fitted[0])
        if not self.values.dense:
            v, v_tail = add(self.values, cache.v, cache.tails[1], inputs.v, fitted[1])
            return cache.replace(k=k, v=v, tails=(k_tail, v_tail))
        t, d = inputs.k.shape[2:]
        where = behind(start, before, count, t=t, slots=cache.slots).reshape(-1)
        v = self.placement.append(cache.v, where, inputs.v.reshape(-1, d))
        return cache.replace(k=k, v=v, tails=(k_tail, cache.tails[1]))

    def flush(self, cache: Cache) -> PyTree:
        for i, (name, codec, window) in enumerate(zip("kv", self.codecs, self.windows, strict=True)):
            if window is not None:
                pool, tail = flush(codec, window, getattr(cache, name), cache.tails[i], cache.fitted[i], cache)
                tails = (tail, cache.tails[1]) if i == 0 else (cache.tails[0], tail)
                cache = cache.replace(tails=tails, **{name: pool})
        return cache

    def store_values(self, v: PyTree, slots: Int32[Array, " m"], rows: PyTree) -> PyTree:
        """The store of values with rows in these slots; a slot beyond it is left out, or slack."""
        if self.values.dense:
            return self.placement.append(v, slots, rows)
        return jax.tree.map(lambda x, new: x.at[slots].set(new, mode="drop"), v, rows)

    def scores(self, q: Queries, cache: Cache, context: AttendContext):
        at, params = _regions(cache, cache.k, context), cache.fitted_of(context.layer)[0]
        if self.positions.at_reading:
            tail = None if self.windows[0] is None else cache.tails[0].of(context.layer)
            return scores_at_reading(self.keys, self.positions, q, at, params, context.rope, tail)
        if self.windows[0] is None:
            return self.keys.scores(q, at, params)
        tail, n = cache.tails[0].of(context.layer), at.padded_slots
        coded = self.keys.scores(q, at.replace(length=tail.coded, bias=None), params)
        exact = tail.exact(n)[:, :, None, None] & at.seen(0, n)
        return biased(jnp.where(exact, tail.scores(q, n), coded), at.bias, at.start)

    def weighted_sum(
        self, cache: Cache, context: AttendContext, weights: Float32[Array, "b h g t n"], d: int
    ) -> Float32[Array, "b h g t d"]:
        if self.values.dense:
            return self.placement.weighted_sum(cache.v, cache.start[context.layer], weights)
        at = _regions(cache, cache.v, context).replace(padded_slots=weights.shape[-1])
        params = cache.fitted_of(context.layer)[1]
        if self.windows[1] is None:
            return self.values.weighted_sum(at, weights, d, params)
        tail = cache.tails[1].of(context.layer)
        coded = jnp.where(tail.exact(weights.shape[-1])[:, :, None, None], 0.0, weights)
        return self.values.weighted_sum(at.replace(length=tail.coded), coded, d, params) + tail.weighted_sum(weights, at.length)

    def attention(self, q: Queries, cache: Cache, context: AttendContext) -> tuple[Queries, Float32[Array, "b h g t"]]:
        if self.dense:
            where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
            return ragged_attention(q, cache.k, cache.v, *where, bias=cache.bias, window=context.window)
        if not self.positions.at_reading and (sides := packed_sides(self.codecs, cache, context.layer)) is not None:
            where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
            return packed_attention(q, *sides, *where, bias=cache.bias, window=context.window)
        scores = self.scores(q, cache, context)
        lse = log_denominator(scores)
        out = self.weighted_sum(cache, context, probabilities(scores, lse), q.shape[-1])
        return out.astype(q.dtype), lse

    def attention_with_weights(
        self, q: Queries, cache: Cache, context: AttendContext, *, heads: tuple[int, ...], upto: Int32[Array, "b p"], n: int
    ) -> tuple[Array, Array, Float[Array, "b p g n"]]:
        """`attention` of one query a row, and where it looks among the first `upto` of at most n slots of some KV heads.

        softmax over those slots alone, whatever the layer's window; 0 behind them.
        """
        if not self.dense or context.window is not None:
            z = self.scores(q, cache, context.replace(window=None, padded_slots=n))[:, np.array(heads)][..., 0, :]
            out, lse = self.attention(q, cache, context)
            return out, lse, softmax(jnp.where(jnp.arange(n) < upto[..., None, None], z, -jnp.inf))
        where = (cache.pos, cache.start[context.layer], cache.length[context.layer], context.positions)
        out, lse, a = attention_with_weights(q, cache.k, cache.v, *where, heads=heads, upto=upto, cap=n, bias=cache.bias)
        return out, lse, a[..., 0, :]


def _regions(cache: Cache, pool: PyTree, context: AttendContext) -> LayerRegions:
    """A layer's regions of one of the cache's pools."""
    layer = context.layer
    return LayerRegions(
        pool=pool, pos=cache.pos, start=cache.start[layer], length=cache.length[layer], positions=context.positions,
        padded_slots=context.padded_slots, window=context.window, bias=cache.bias,
    )  # fmt: skip
