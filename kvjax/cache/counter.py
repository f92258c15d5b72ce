"""Counts beyond 2^32 of what programs do, where integers have 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int32, Int64, UInt32


@struct.dataclass
class Counter:
    """high · 2^32 + low, for each row."""

    low: UInt32[Array, " b"]
    high: UInt32[Array, " b"]

    @classmethod
    def zeros(cls, rows: int) -> "Counter":
        """Two arrays: a program that is given both owns both."""
        return cls(low=jnp.zeros(rows, jnp.uint32), high=jnp.zeros(rows, jnp.uint32))

    def plus(self, more: Int32[Array, " b"]) -> "Counter":
        """Counted on by numbers that are not negative."""
        low = self.low + more.astype(jnp.uint32)
        return Counter(low=low, high=self.high + (low < self.low))

    @staticmethod
    def stack(counters: list["Counter"]) -> "Counter":
        """Several rows as one batch."""
        return jax.tree.map(lambda *x: jnp.concatenate(x), *counters)

    @property
    def total(self) -> Int64[np.ndarray, " b"]:
        """On the host."""
        return (np.asarray(self.high, np.int64) << 32) + np.asarray(self.low, np.int64)
