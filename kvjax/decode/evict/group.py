"""Layers that are cut together, and what stages see of each of them."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.decode.evict.layer_step import LayerStep
from kvjax.types import Number

#: Padded slots that are ranked at once: some sixty bytes each are alive while they are.
AT_ONCE = 1 << 20


@struct.dataclass
class Stacked:
    """What several layers left: the leaves stacked, and the structure of one layer's."""

    leaves: list[PyTree]
    form: PyTree = struct.field(pytree_node=False)

    @classmethod
    def of(cls, left: Sequence[LayerStep]) -> "Stacked":
        return cls(leaves=[jnp.stack(x) for x in zip(*map(jax.tree.leaves, left), strict=True)], form=jax.tree.structure(left[0]))

    def unstacked(self) -> LayerStep:
        """Inside a loop over layers: what one left."""
        return jax.tree.unflatten(self.form, self.leaves)


@struct.dataclass
class Group:
    """Consecutive layers of a cache.

    Attributes:
        layers: their indices, traced.
        left: what the step's attention left of each.
        due: the heads that are to be cut.
        start, budget: first slot and budget of their regions.
        slots, valid: pool slots of their regions padded to one width, and which of them are in use.
    """

    layers: Int32[Array, " l"]
    left: Stacked
    due: Bool[Array, "l b h"]
    start: Int32[Array, "l b h"]
    budget: Int32[Array, "l b h"]
    slots: Int32[Array, "l b h n"]
    valid: Bool[Array, "l b h n"]

    @classmethod
    def of(
        cls, cache: KVCache, left: Stacked, due: Bool[Array, "l b h"], *, first: Number, count: int, padded_slots: int
    ) -> "Group":
        """`count` layers from `first` on; regions are padded to `padded_slots`."""

        def some(x):
            return lax.dynamic_slice_in_dim(x, first, count)

        i, start, length = jnp.arange(padded_slots, dtype=jnp.int32), some(cache.start), some(cache.length)
        return cls(
            layers=first + jnp.arange(count, dtype=jnp.int32),
            left=jax.tree.map(some, left),
            due=some(due),
            start=start,
            budget=some(cache.budget),
            slots=start[..., None] + i,
            valid=i < length[..., None],
        )

    def each(self, f: Callable, *xs: PyTree) -> PyTree:
        """f(layer, left, x, ...) of every layer, stacked: a loop, whose body is compiled once."""
        return lax.map(lambda at: f(at[0], at[1].unstacked(), *at[2:]), (self.layers, self.left, *xs))


def together(layers: int, slots: int) -> int:
    """Layers in a group, if each holds so many padded slots: a divisor of all, so that one program cuts every group."""
    return max(n for n in range(1, layers + 1) if layers % n == 0 and (n == 1 or n * slots <= AT_ONCE))
