"""What the keys of each page of a region are at least and at most, channel by channel."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.cache.retriever_state import RetrieverState


@struct.dataclass
class PageBounds(RetrieverState):
    """Axis letters: p pages of a head, those it does not have included.

    Attributes:
        low, high: least and greatest of a page's stored keys, a [b h p d] in their dtype for each layer that selects; 0 where there
            is no page. A layer's are an array of their own: a slice of one for all would be a copy in every step.
        full: pages each head has; its slots behind them belong to none.
        pages: pages a query reads.
        most: as many as any row's, rounded up: the size of a list.   size: slots of a page.
    """

    low: PyTree
    high: PyTree
    full: Int32[Array, "l b h"]
    pages: Int32[Array, " b"]
    most: int = struct.field(pytree_node=False)
    size: int = struct.field(pytree_node=False)

    @property
    def share(self) -> Float32[Array, "l b h"]:
        """Share of a head's pages that a query of a layer that selects reads."""
        return jnp.minimum(self.pages[:, None], self.full) / jnp.maximum(self.full, 1)

    @property
    def common(self) -> str:
        return f"pages of {self.size} slots in {len(self.low)} layers"

    @property
    def raw(self) -> PyTree:
        return self.low, self.high

    def split(self) -> tuple["PageBounds", PyTree]:
        """The state without the bounds, which decoding only reads, and the bounds."""
        return self.replace(low=None, high=None), (self.low, self.high)

    def joined(self, bounds: PyTree) -> "PageBounds":
        """The state with its bounds."""
        return self.replace(low=bounds[0], high=bounds[1])

    @staticmethod
    def stack(states: list) -> "PageBounds":
        """Several rows as one batch."""
        sizes = [x.shape[2] for s in states for x in s.low]

        def wide(x):
            return jnp.pad(x, ((0, 0), (0, 0), (0, max(sizes) - x.shape[2]), (0, 0)))

        low, high = jax.tree.map(lambda *x: jnp.concatenate([wide(y) for y in x]), *((s.low, s.high) for s in states))
        full, pages = jnp.concatenate([s.full for s in states], 1), jnp.concatenate([s.pages for s in states])
        return PageBounds(low=low, high=high, full=full, pages=pages, most=max(s.most for s in states), size=states[0].size)


@partial(jax.jit, static_argnames=("size", "pages"))
def page_bounds(
    k: Float[Array, "s d"], start: Int32[Array, "b h"], full: Int32[Array, "b h"], *, size: int, pages: int
) -> tuple[Float[Array, "b h p d"], Float[Array, "b h p d"]]:
    """m = min k and M = max k over each page of `size` slots of one layer; 0 beyond the `full` pages of a head."""
    offsets = jnp.arange(pages * size, dtype=jnp.int32).reshape(pages, size)
    keys = k.at[start[..., None, None] + offsets].get(mode="clip")
    real = (jnp.arange(pages) < full[..., None])[..., None]
    return jnp.where(real, keys.min(-2), 0), jnp.where(real, keys.max(-2), 0)
