"""The largest channels of every page coded apart from the others (QJL)."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int32, PyTree, UInt

from kvjax.codec.codec import Codec
from kvjax.codec.sparse import index_dtype, marked
from kvjax.codec.wrapped import Wrapped
from kvjax.protocols import Decoder
from kvjax.types import Keys, Layer, Leaf


@struct.dataclass
class OutlierChannelRows:
    """inside, outside: rows of both codecs.   channel: [.., count] by page.   Or their shapes."""

    inside: PyTree
    outside: PyTree
    channel: UInt[Array, "..."] | Leaf


def largest_channels(pages: Float[Array, "*a m d"], count: int) -> Int32[Array, "*a c"]:
    """The `count` channels of greatest norm over a page's m tokens, ascending; ties to the lower one."""
    squares = (pages.astype(jnp.float32) ** 2).sum(-2)
    return jnp.sort(lax.top_k(squares, count)[1].astype(jnp.int32), -1)


@struct.dataclass
class OutlierChannels(Wrapped):
    """Some channels of a page by one codec, the others by another; each sees zeros in place of what is not its own.

    Args:
        outside: the codec of the page's largest channels.
        count: so many of them.   size: slots of a page, whole pages of both codecs.

    Takes 8 count / (size d) bits a number beside what both codecs take.
    Source: QJL, arXiv 2406.03482, section 4.
    Raises: ValueError for a size that pages of the codecs do not fill; for a count that leaves none, when compressing.
    """

    outside: Codec
    count: int = struct.field(pytree_node=False, default=8)
    size: int = struct.field(pytree_node=False, default=32)

    def __post_init__(self):
        super().__post_init__()
        codecs = [codec for codec in self.inner if isinstance(codec, Codec)]
        if self.count < 1 or any(self.size % codec.page for codec in codecs):
            raise ValueError(f"1 channel or more, and whole pages of {[codec.page for codec in codecs]} slots; got {self!r}")

    @property
    def inner(self) -> tuple[Codec, ...]:
        return self.codec, self.outside

    @property
    def page(self) -> int:
        return self.size

    def at(self, layer: Layer) -> "OutlierChannels":
        return self.replace(codec=self.codec.at(layer), outside=self.outside.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        if self.count >= model.head_dim:
            raise ValueError(f"{self.count} outlier channels leave none of the model's {model.head_dim}: lower count")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> OutlierChannelRows:
        channel = jnp.zeros((slots // self.size, self.count), index_dtype(d))
        return OutlierChannelRows(self.codec.rows(slots, d, dtype), self.outside.rows(slots, d, dtype), channel)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> OutlierChannelRows:
        b, h, n, d = x.shape
        channel = largest_channels(x.reshape(b, h, n // self.size, self.size, d), self.count)
        out = self._outside(channel, d)
        inside = self.codec.encode(jnp.where(out, 0, x), pos, params)
        outside = self.outside.encode(jnp.where(out, x, 0), pos, params)
        return OutlierChannelRows(inside, outside, channel.astype(index_dtype(d)))

    def decode(self, rows: OutlierChannelRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        inside = self.codec.decode(rows.inside, jnp.float32, params)
        outside = self.outside.decode(rows.outside, jnp.float32, params)
        return jnp.where(self._outside(rows.channel, inside.shape[-1]), outside, inside).astype(dtype)

    def _outside(self, channel: Array, d: int) -> Bool[Array, "b h n d"]:
        """Which numbers are the second codec's."""
        return jnp.repeat(marked(channel, d), self.size, axis=2)
