"""Which of the last queries gave a key less than an even share (Scissorhands)."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int32, UInt32

from kvjax.evidence.reduce import Reduction, Rows
from kvjax.ranges import Size

Words = UInt32[Array, "b h g n w"]


@struct.dataclass
class LowBits:
    """A ring of bits a key: bit q mod window of `low` says that query q gave it less than an even share.

    `read`: the bits of the queries that have been seen, the same for every key.
    """

    low: Words
    read: Words


@struct.dataclass
class LowRows(Reduction):
    """1[p < 1 / (keys query t sees)] of the last `window` queries, 32 to a word.

    Args:
        window: queries that count, a multiple of 32.
    """

    window: Size = struct.field(pytree_node=False, default=416)

    def __post_init__(self):
        if self.window < 32 or self.window % 32:
            raise ValueError(f"LowRows keeps 32 queries a word: window must be a multiple of 32; got {self.window}")

    @property
    def key(self) -> str:
        return f"low_rows_{self.window}"

    def empty(self, shape: tuple[int, int, int, int]) -> LowBits:
        low, read = (jnp.zeros((*shape, self.window // 32), jnp.uint32) for _ in range(2))  # a program may take over each
        return LowBits(low=low, read=read)

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> LowBits:
        real = visible.any((1, 2, 4))
        last = jnp.where(real, positions, -1).max(-1, keepdims=True)
        counts = (real & (positions > last - self.window))[:, None, None, :, None]
        even = 1.0 / jnp.maximum(visible.sum(-1, keepdims=True), 1)
        ring = positions % self.window
        read = jnp.broadcast_to(counts, p.shape)
        return LowBits(low=self._words(read & visible & (p < even), ring), read=self._words(read, ring))

    def join(self, before: LowBits, after: LowBits) -> LowBits:
        return LowBits(low=(before.low & ~after.read) | after.low, read=before.read | after.read)

    def _words(self, bits: Bool[Array, "b h g t n"], ring: Int32[Array, "b t"]) -> Words:
        """Bits of queries t gathered at their places of the ring; no two of them share one."""
        bit = jnp.uint32(1) << (ring % 32).astype(jnp.uint32)
        chosen = jnp.where(bits, bit[:, None, None, :, None], jnp.uint32(0))

        def word(i: int) -> UInt32[Array, "b h g n"]:
            mine = (ring // 32 == i)[:, None, None, :, None]
            return jnp.where(mine, chosen, jnp.uint32(0)).sum(3, dtype=jnp.uint32)

        return jnp.stack([word(i) for i in range(self.window // 32)], -1)


def count_bits(words: UInt32[Array, "*x w"]) -> Int32[Array, "*x"]:
    """How many bits are set."""
    return lax.population_count(words).sum(-1).astype(jnp.int32)
