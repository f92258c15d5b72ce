"""The ends of every row kept exactly, the rest coded without them (GEAR)."""

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float16, Int32, PyTree, UInt

from kvjax.codec.codec import Codec
from kvjax.codec.sparse import ends, index_dtype, marked, put
from kvjax.codec.wrapped import Wrapped
from kvjax.protocols import Decoder
from kvjax.types import Keys, Leaf


@struct.dataclass
class OutlierRows:
    """rest: rows of what is left.   value, index: [.., m] by slot, or [.., m, d] by page.   Or their shapes."""

    rest: PyTree
    value: Float16[Array, "..."] | Leaf
    index: UInt[Array, "..."] | Leaf


def without_ends(x: Float[Array, "*a n"], each: int) -> tuple[Float[Array, "*a n"], Float[Array, "*a m"], Int32[Array, "*a m"]]:
    """(x with its ends replaced by the mean of all of it, the ends, their indices), `each` on either side."""
    index = ends(x, each)
    filled = jnp.where(marked(index, x.shape[-1]), x.mean(-1, keepdims=True), x)
    return filled, jnp.take_along_axis(x, index, -1), index


@struct.dataclass
class Outliers(Wrapped):
    """x ≈ c(x without its ends) + S: the few least and greatest numbers of a row are stored as they are.

    Args:
        each: numbers on either side.
        reduce: what a row is: "channel": the channels of one token. "token": `size` tokens of one channel, a page.
        size: tokens of a page where reduce is "token"; whole pages of the codec.

    Takes 24 bits an outlier (32 where a row has more than 255 numbers) beside the codec's. What is taken out is coded as the row's
    mean.
    Source: GEAR, arXiv 2403.05527, section 3. Differs: so many a row, not a share of it.
    Raises: ValueError for none or too many outliers, another `reduce`, pages that the codec's do not fill.
    """

    each: int = struct.field(pytree_node=False, default=1)
    reduce: str = struct.field(pytree_node=False, default="channel")
    size: int = struct.field(pytree_node=False, default=64)

    def __post_init__(self):
        super().__post_init__()
        if self.reduce not in ("token", "channel") or self.each < 1:
            raise ValueError(f'outliers: 1 or more a side, reduce="token" or "channel"; got {self.each}, {self.reduce!r}')
        if not isinstance(self.codec, Codec) or self.reduce == "channel":
            return
        if self.size % self.codec.page or 2 * self.each > self.size:
            raise ValueError(f"{2 * self.each} outliers in {self.size} slots, which are to be whole pages of {self.codec.page}")

    @property
    def page(self) -> int:
        return self.size if self.reduce == "token" else self.codec.page

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        super().check(model, length, mean_budget)
        if self.reduce == "channel" and 2 * self.each > model.head_dim:
            raise ValueError(f"{2 * self.each} outliers are more than the model's head dimension {model.head_dim}")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> OutlierRows:
        by_page = self.reduce == "token"
        shape = (slots // self.size, 2 * self.each, d) if by_page else (slots, 2 * self.each)
        index = jnp.zeros(shape, index_dtype(self.size if by_page else d))
        return OutlierRows(self.codec.rows(slots, d, dtype), jnp.zeros(shape, jnp.float16), index)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> OutlierRows:
        lines = self._lines(x.astype(jnp.float32))
        filled, value, index = without_ends(lines, self.each)
        if self.reduce == "token":
            value, index = (jnp.swapaxes(y, -1, -2) for y in (value, index))
        rest = self.codec.encode(self._slots(filled), pos, params)
        return OutlierRows(rest, value.astype(jnp.float16), index.astype(index_dtype(lines.shape[-1])))

    def decode(self, rows: OutlierRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        value, index = rows.value, rows.index
        if self.reduce == "token":
            value, index = (jnp.swapaxes(y, -1, -2) for y in (value, index))
        lines = self._lines(self.codec.decode(rows.rest, jnp.float32, params))
        return self._slots(put(lines, index, value)).astype(dtype)

    def _lines(self, x: Keys) -> Array:
        """Rows along the last axis."""
        if self.reduce == "channel":
            return x
        b, h, n, d = x.shape
        return jnp.swapaxes(x.reshape(b, h, n // self.size, self.size, d), -1, -2)

    def _slots(self, lines: Array) -> Keys:
        """[b, h, n, d] of rows."""
        if self.reduce == "channel":
            return lines
        pages = jnp.swapaxes(lines, -1, -2)
        return pages.reshape(*pages.shape[:2], -1, pages.shape[-1])
