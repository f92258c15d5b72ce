"""Non-uniform codes: a calibrated table of levels in a channel's or a token's own range, outliers kept exactly (KVQuant)."""

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree, UInt, UInt8

from kvjax.codec.affine import STORES
from kvjax.codec.bit_stream import pack_bits, stream_bytes, unpack_bits
from kvjax.codec.codec import Codec
from kvjax.codec.levels import nearest_level
from kvjax.codec.sparse import ends, index_dtype, marked, put
from kvjax.codec.uniform import channels, whole_bytes
from kvjax.protocols import Decoder
from kvjax.types import Keys, Layer, Leaf, Table, later_table, table


@struct.dataclass
class NonUniformRows:
    """code: [.., d·b / 8] bytes.   value, index: [.., m] outliers.   offset, spread: [..], None where channels have them."""

    code: UInt8[Array, "..."] | Leaf
    value: Float[Array, "..."] | Leaf
    index: UInt[Array, "..."] | Leaf
    offset: Float[Array, "..."] | Leaf = None
    spread: Float[Array, "..."] | Leaf = None


def centred(low: Float[Array, "*a"], high: Float[Array, "*a"]) -> tuple[Float[Array, "*a"], Float[Array, "*a"]]:
    """(offset, spread) = ((high + low) / 2, (high - low) / 2)."""
    return (high + low) / 2, (high - low) / 2


def normalised(x: Float[Array, "*a"], offset: Float[Array, "*#a"], spread: Float[Array, "*#a"]) -> Float32[Array, "*a"]:
    """(x - offset) / spread; 0 where there is no spread."""
    return jnp.where(spread > 0, (x - offset) / jnp.where(spread > 0, spread, 1.0), 0.0)


def beyond(x: Float32[Array, "*a d"], count: int) -> Int32[Array, "*a m"]:
    """The `count` normalised numbers farthest outside [-1, 1], ties to the lower index; d for each that there is not."""
    away = jnp.abs(x)
    order = jnp.argsort(-away, axis=-1, stable=True)[..., :count].astype(jnp.int32)
    return jnp.where(jnp.take_along_axis(away, order, -1) > 1, order, x.shape[-1])


class NonUniform(Codec):
    """What both codecs share: a table `levels` [L, 2^b], and another that codes stand for where statistics are matched.

    See `NonUniformChannels` and `NonUniformTokens`.
    """

    levels: PyTree
    decoded: PyTree
    store: str

    @property
    def bits(self) -> int:
        """b."""
        return (np.shape(self.levels)[-1] - 1).bit_length()

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        del length, mean_budget
        whole_bytes(model.head_dim)
        if len(self.levels) != model.layers:
            raise ValueError(f"the levels are for {len(self.levels)} layers, the model has {model.layers}: calibrate it")

    def _code(self, x: Float32[Array, "b h n d"]) -> UInt8[Array, "b h n w"]:
        """Bytes of normalised numbers."""
        return pack_bits(nearest_level(x, jnp.asarray(self.levels, jnp.float32)), self.bits)

    def _level(self, code: UInt8[Array, "b h n w"]) -> Float32[Array, "b h n d"]:
        """What bytes stand for, normalised."""
        levels = self.levels if self.decoded is None else self.decoded
        return jnp.asarray(levels, jnp.float32)[unpack_bits(code, channels(code, self.bits), self.bits)]

    def _empty(self, slots: int, d: int, outliers: int) -> NonUniformRows:
        code = jnp.zeros((slots, stream_bytes(d, self.bits)), jnp.uint8)
        return NonUniformRows(code, jnp.zeros((slots, outliers), self.store), jnp.zeros((slots, outliers), index_dtype(d)))


def check_store(store: str, outliers: int, least: int) -> None:
    """Raise ValueError for an unknown dtype or too few outliers."""
    if store not in STORES or outliers < least:
        raise ValueError(f"outliers: {least} or more, stored as one of {STORES}; got {outliers}, {store!r}")


@struct.dataclass
class NonUniformChannels(NonUniform):
    """x ≈ offset + spread · level, thresholds of every channel measured once; a token's numbers beyond them are kept exactly.

    Args:
        levels: [L, 2^b] ascending, in the range [-1, 1].   low, high: [L, h, d] thresholds.
        decoded: [L, 2^b], what codes stand for where statistics are matched; None: the levels.
        outliers: most of a token and head; where there are more, the farthest stay, and the others get the nearest level.
        store: dtype of outliers.   origin: what the tables were measured on; two codecs of one origin are equal.

    Takes b bits a number, and 24 an outlier.
    Source: KVQuant, arXiv 2401.18079, sections 3.1 to 3.4. Differs: a fixed number of outliers a token and head in place of as many
    as there are.
    """

    levels: Table = table()
    low: Table = table()
    high: Table = table()
    decoded: Table = later_table()
    outliers: int = struct.field(pytree_node=False, default=2)
    store: str = struct.field(pytree_node=False, default="float16")
    origin: str = struct.field(pytree_node=False, default="")

    def __post_init__(self):
        check_store(self.store, self.outliers, 0)

    def at(self, layer: Layer) -> "NonUniformChannels":
        decoded = None if self.decoded is None else self.decoded[layer]
        return self.replace(levels=self.levels[layer], low=self.low[layer], high=self.high[layer], decoded=decoded)

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        found, wanted = np.shape(self.low)[1:], (model.heads, model.head_dim)
        if found != wanted:
            raise ValueError(f"the thresholds are of {found} heads and channels, the model has {wanted}: calibrate it")

    def _range(self) -> tuple[Float32[Array, "h 1 d"], Float32[Array, "h 1 d"]]:
        low, high = (jnp.asarray(x, jnp.float32)[:, None] for x in (self.low, self.high))
        return centred(low, high)

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> NonUniformRows:
        del dtype
        return self._empty(slots, d, self.outliers)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> NonUniformRows:
        del pos, params
        x = x.astype(jnp.float32)
        inside = normalised(x, *self._range())
        index = beyond(inside, self.outliers)
        value = jnp.take_along_axis(x, jnp.minimum(index, x.shape[-1] - 1), -1)
        return NonUniformRows(self._code(inside), value.astype(self.store), index.astype(index_dtype(x.shape[-1])))

    def decode(self, rows: NonUniformRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        offset, spread = self._range()
        return put(self._level(rows.code) * spread + offset, rows.index, rows.value).astype(dtype)


@struct.dataclass
class NonUniformTokens(NonUniform):
    """x ≈ offset + spread · level, the range of each token's own numbers without its ends, which are kept exactly.

    Args:
        levels, decoded, store, origin: as `NonUniformChannels`; offset and spread are of the dtype `store` too.
        each: outliers on either side, at least 1.

    Takes b bits a number, 24 an outlier and 32 a token.
    Source: KVQuant, arXiv 2401.18079, sections 3.1 to 3.4. Differs: a token's range is that of one KV head, since heads may hold
    different tokens.
    """

    levels: Table = table()
    decoded: Table = later_table()
    each: int = struct.field(pytree_node=False, default=1)
    store: str = struct.field(pytree_node=False, default="float16")
    origin: str = struct.field(pytree_node=False, default="")

    def __post_init__(self):
        check_store(self.store, self.each, 1)

    def at(self, layer: Layer) -> "NonUniformTokens":
        return self.replace(levels=self.levels[layer], decoded=None if self.decoded is None else self.decoded[layer])

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        if 2 * self.each >= model.head_dim:
            raise ValueError(f"{2 * self.each} outliers leave nothing of the model's head dimension {model.head_dim}")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> NonUniformRows:
        del dtype
        of_token = dict(offset=jnp.zeros(slots, self.store), spread=jnp.zeros(slots, self.store))
        return self._empty(slots, d, 2 * self.each).replace(**of_token)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> NonUniformRows:
        del pos, params
        x = x.astype(jnp.float32)
        index = ends(x, self.each)
        out = marked(index, x.shape[-1])
        low, high = jnp.where(out, jnp.inf, x).min(-1), jnp.where(out, -jnp.inf, x).max(-1)
        offset, spread = (y.astype(self.store) for y in centred(low, high))
        inside = normalised(x, *(y.astype(jnp.float32)[..., None] for y in (offset, spread)))
        value = jnp.take_along_axis(x, index, -1).astype(self.store)
        return NonUniformRows(self._code(inside), value, index.astype(index_dtype(x.shape[-1])), offset, spread)

    def decode(self, rows: NonUniformRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        offset, spread = (y.astype(jnp.float32)[..., None] for y in (rows.offset, rows.spread))
        return put(self._level(rows.code) * spread + offset, rows.index, rows.value).astype(dtype)
