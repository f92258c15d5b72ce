"""Where values live: on the device, in host memory beside it, or in NumPy rows behind a callback. One seam, three placements.

A *store* holds rows [slots, d]. Everything the library does with values goes through the operations of the placement: `empty`,
`append`, `take`, `weighted_sum`, `pick`, `compact` and `rewrite` and, between programs, `relocate` and `concatenate`. `begin` says
early what `take` will be asked for.
"""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, PyTree

from kvjax.kernels import compact as kernels
from kvjax.kernels.weighted_values import weighted_values


@struct.dataclass
class OnDevice:
    """Values in device memory, as a jax array."""

    #: JAX's name of the memory the rows are in.
    memory_kind: ClassVar[str] = "device"
    #: Whether rows are read ahead of `take` where `begin` named them.
    reads_ahead: ClassVar[bool] = False

    def empty(self, slots: int, d: int, dtype: DTypeLike) -> Float[Array, "s d"]:
        """A store of zeros."""
        return jnp.zeros((slots, d), dtype)

    def append(self, store: PyTree, slots: Int32[Array, " m"], rows: Float[Array, "m d"]) -> PyTree:
        """Write a step's few new rows; a slot beyond the store is left out, or writes the last slot (slack, which nobody reads)."""
        return store.at[slots].set(rows.astype(store.dtype), mode="drop")

    def begin(self, store: PyTree, slots: Int32[Array, "*shape"]) -> Int32[Array, ""]:
        """Have the rows read that `take` will be asked for with the same slots: 0, there as soon as the reading has begun."""
        del store, slots
        return jnp.int32(0)

    def take(self, store: PyTree, slots: Int32[Array, "*shape"], after: PyTree = ()) -> Float[Array, "*shape d"]:
        """The rows of `slots`; a slot beyond the store reads the last one. Nothing is waited for before `after` is there."""
        del after
        return jnp.take(store, slots, axis=0, mode="clip")

    def pick(
        self, store: PyTree, rows: Float[Array, "b h n d"], order: Int32[Array, "b h m"], start: Int32[Array, "b h"],
        count: Int32[Array, "b h"],
    ) -> PyTree:  # fmt: skip
        """Chosen rows packed into regions, as `kernels.compact.pick`, but exactly: a store need not end in slack."""
        taken = jnp.take_along_axis(rows, order[..., None], 2)
        return self.rewrite(store, taken, start[..., None] + jnp.arange(order.shape[-1], dtype=jnp.int32), count)

    def compact(self, store: PyTree, start: Int32[Array, "b h"], moves: kernels.Moves) -> PyTree:
        """Holes filled, as `kernels.compact.compact`."""
        return kernels.compact(store, start, moves)

    def rewrite(
        self, store: PyTree, rows: Float[Array, "b h n d"], slots: Int32[Array, "b h n"], count: Int32[Array, "b h"]
    ) -> PyTree:
        """Rows written back, as `kernels.compact.rewrite`."""
        return kernels.rewrite(store, rows, slots, count)

    def weighted_sum(
        self, store: PyTree, start: Int32[Array, "b h"], weights: Float32[Array, "b h g t n"]
    ) -> Float32[Array, "b h g t d"]:
        """out = Σ_j weights_j · store[start + j], float32."""
        return weighted_values(store, start, weights)

    def adopt(self, new: PyTree, old: PyTree) -> PyTree:
        """The store a program gave back, with what outlives programs taken over from the one it was given."""
        del old
        return new

    @property
    def on_device(self) -> bool:
        """Whether the rows move with everything else that has a slot axis, by the device's kernels."""
        return self.memory_kind == "device"

    def concatenate(self, stores: list) -> PyTree:
        """Stores behind one another."""
        return jnp.concatenate(stores)
