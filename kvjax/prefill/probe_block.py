"""A probe's tokens as evidence sees them: their attention rows over the prompt's frozen keys and their own."""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.evidence.reduce import Reduction, RowsAt, Sum
from kvjax.kernels.softmax import softmax
from kvjax.prefill.chunk_block import ChunkBlock
from kvjax.prefill.rows import rows_of_a_tile


@struct.dataclass
class KeysRead:
    """The keys a softmax is taken over: m of them, those at `real` with their positions."""

    k: Float[Array, "b h m d"]
    position: Int32[Array, " m"]
    real: Bool[Array, " m"]


def probe_rows(
    reduction: Reduction, q: Float[Array, "b h g t d"], read: KeysRead, *, offset: Int32[Array, " b"], count: Int32[Array, " b"],
    begin: Int32[Array, ""], window: int | None,
) -> PyTree:  # fmt: skip
    """The reduction, [b h g m], of p_i = softmax_j q_i k_j / sqrt(d) over the keys read, i - window < j <= i.

    i = offset + row is the query's position; those before `begin` do not count.
    """
    b, h, g, t, d = q.shape
    m = read.k.shape[2]
    rows = rows_of_a_tile(t, b * h * g * m)
    tiles = -(-t // rows)
    q = jnp.pad(q, (*((0, 0),) * 3, (0, tiles * rows - t), (0, 0)))

    def tile(i, state):
        index = i * rows + jnp.arange(rows, dtype=jnp.int32)
        positions = offset[:, None] + index
        seen = visible(read, positions, window)[:, None, None]
        part = lax.dynamic_slice_in_dim(q, i * rows, rows, axis=3)
        z = jnp.einsum("bhgtd,bhmd->bhgtm", part, read.k, preferred_element_type=jnp.float32) / math.sqrt(d)
        seen = jnp.broadcast_to(seen, z.shape)
        counted = seen & ((index < count[:, None]) & (positions >= begin))[:, None, None, :, None]
        p = jnp.where(counted, softmax(jnp.where(seen, z, -jnp.inf)), 0.0)
        where = RowsAt(keys=jnp.broadcast_to(read.position, (b, h, m)), steps=jnp.zeros_like(positions))
        return reduction.join(state, reduction.of_rows_at(p, positions, counted, where))

    return lax.fori_loop(0, tiles, tile, reduction.empty((b, h, g, m)))


def visible(read: KeysRead, positions: Int32[Array, "b t"], window: int | None) -> Bool[Array, "b t m"]:
    """Which of the keys read a query at each position sees."""
    seen = read.real & (read.position <= positions[..., None])
    return seen if window is None else seen & (read.position > positions[..., None] - window)


@struct.dataclass
class ProbeBlock(ChunkBlock):
    """Rows of a prompt's probe; probabilities are taken among `read()`, and told of the span's keys alone.

    Attributes:
        k: the prompt's keys, and from position `length` on the probe's own.
        length: tokens of the prompt.   span: start and stop of the prompt's keys whose attention is told.
        begin: position of the first query that counts.
        n: padded length of the prompt.   width: padded length of the span.   sinks: first keys that take part, told or not.
    """

    length: Int32[Array, ""]
    span: Int32[Array, "2"]
    begin: Int32[Array, ""]
    n: int = struct.field(pytree_node=False)
    width: int = struct.field(pytree_node=False)
    sinks: int = struct.field(pytree_node=False)
    window: int | None = struct.field(pytree_node=False)

    @property
    def first(self) -> Int32[Array, ""]:
        """Where the span's padded keys start."""
        return jnp.minimum(self.span[0], self.n - self.width)

    def read(self) -> KeysRead:
        """First keys before the span, the span, the probe's own keys."""
        own = self.k.shape[2] - self.n

        def cut(at, size):
            return lax.dynamic_slice_in_dim(self.k, at, size, axis=2)

        sinks, span = (jnp.arange(size, dtype=jnp.int32) for size in (self.sinks, self.width))
        span, last = self.first + span, self.length + jnp.arange(own, dtype=jnp.int32)
        real = sinks < self.span[0], (self.span[0] <= span) & (span < self.span[1]), jnp.ones(own, bool)
        return KeysRead(
            k=jnp.concatenate([cut(0, self.sinks), cut(self.first, self.width), cut(self.length, own)], 2),
            position=jnp.concatenate([sinks, span, last]),
            real=jnp.concatenate(real),
        )

    def column_sums(self) -> Float32[Array, "b h g n"]:
        return self.reduced(Sum())

    def reduced(self, reduction: Reduction) -> PyTree:
        """The reduction's states [b h g n]: of keys outside the span, as if nobody had looked."""
        rows = dict(offset=self.offset, count=self.count, begin=self.begin, window=self.window)
        found = probe_rows(reduction, self.inputs.q, self.read(), **rows)
        empty = reduction.empty((*self.inputs.q.shape[:3], self.n))
        return jax.tree.map(self._told, found, empty)

    def _told(self, found: Array, empty: Array) -> Array:
        """States of the keys read → of the prompt's keys."""
        at = jnp.arange(self.n, dtype=jnp.int32)
        inside = (self.span[0] <= at) & (at < self.span[1])
        span = lax.slice_in_dim(found, self.sinks, self.sinks + self.width, axis=3)
        spread = lax.dynamic_update_slice_in_dim(empty, span, self.first, axis=3)
        return jnp.where(inside, spread, empty)
