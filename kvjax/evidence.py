"""Evidence: what attention leaves behind for a scorer to read, and what each piece costs to record.

A *need* names one piece. It is a fold: `empty` before the first token, `observe` for every block of tokens, whether the block
is a whole prompt, a chunk of one, or a single decoded token. A scorer lists its needs, and nothing else is recorded.
What is not `carried` is while decoding that of the step alone, made from the field of `Heads` that it `reads`.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

from kvjax.attend import Heads


@runtime_checkable
class Tokens(Protocol):
    """Tokens a layer has just attended with: row b holds `count[b]` real ones from position `offset[b]` on."""

    heads: Heads
    offset: Int32[Array, " b"]
    count: Int32[Array, " b"]


@runtime_checkable
class Block(Tokens, Protocol):
    """Tokens whose attention can be told."""

    def column_sums(self) -> Float32[Array, "b h g n"]: ...


@dataclass(frozen=True)
class Shape:
    """Sizes an empty fold is made from."""

    b: int
    h: int
    g: int
    n: int
    d: int
    e: int
    dtype: Any


@dataclass(frozen=True)
class WindowQueries:
    """The last `size` rotated queries, oldest first. Costs size·d·g values a KV head; a short prompt leaves zeros in front."""

    size: int = 64
    key = "window_queries"
    carried = True

    def empty(self, shape: Shape) -> Float[Array, "b h g w d"]:
        return jnp.zeros((shape.b, shape.h, shape.g, self.size, shape.d), shape.dtype)

    def observe(self, old: Float[Array, "b h g w d"], block: Tokens) -> Float[Array, "b h g w d"]:
        both = jnp.concatenate([old, block.heads.q.astype(old.dtype)], axis=3)
        last = block.count[:, None] + jnp.arange(self.size)
        return jnp.take_along_axis(both, last[:, None, None, :, None], axis=3)

    def serves(self, other) -> bool:
        return isinstance(other, WindowQueries) and self.size >= other.size


@struct.dataclass
class Moments:
    """Running moments of pre-rotary queries: count, mean, and the sum of outer products of deviations from the mean.

    Deviations, not raw squares: projections with large biases would lose the covariance in float32.
    """

    count: Float32[Array, " b"]
    mean: Float32[Array, "b h g d"]
    spread: Float32[Array, "b h g d d"]

    def covariance(self) -> Float32[Array, "b h g d d"]:
        """Second central moment, divided by the count (not count - 1)."""
        return self.spread / jnp.maximum(self.count, 1.0)[:, None, None, None, None]


def merge_moments(one: Moments, two: Moments) -> Moments:
    """Moments of both samples together (Chan, Golub and LeVeque, 1979, eq. 2.1)."""
    count = one.count + two.count
    share = two.count / jnp.maximum(count, 1.0)
    wide = lambda x, n: x.reshape(x.shape + (1,) * n)  # noqa: E731
    delta = two.mean - one.mean
    between = delta[..., :, None] * delta[..., None, :] * wide(one.count * share, 4)
    return Moments(count=count, mean=one.mean + delta * wide(share, 3), spread=one.spread + two.spread + between)


@dataclass(frozen=True)
class QueryMoments:
    """Mean and covariance of the pre-rotary queries after the first `skip` positions. Costs d² a query head."""

    skip: int = 4
    carried = True

    @property
    def key(self) -> str:
        return f"query_moments_{self.skip}"

    def empty(self, shape: Shape) -> Moments:
        heads = (shape.b, shape.h, shape.g, shape.d)
        zeros = lambda s: jnp.zeros(s, jnp.float32)  # noqa: E731
        return Moments(count=zeros(shape.b), mean=zeros(heads), spread=zeros((*heads, shape.d)))

    def observe(self, old: Moments, block: Tokens) -> Moments:
        t = jnp.arange(block.heads.q.shape[3])
        real = (t < block.count[:, None]) & (block.offset[:, None] + t >= self.skip)
        keep = real[:, None, None, :, None]
        count = real.sum(-1).astype(jnp.float32)
        q = block.heads.q_raw.astype(jnp.float32)
        mean = jnp.where(keep, q, 0.0).sum(3) / jnp.maximum(count, 1.0)[:, None, None, None]
        off = jnp.where(keep, q - mean[..., None, :], 0.0)
        return merge_moments(old, Moments(count=count, mean=mean, spread=jnp.einsum("bhgtd,bhgtc->bhgdc", off, off)))

    def serves(self, other) -> bool:
        return self == other


@dataclass(frozen=True)
class ColumnSums:
    """Attention mass each key has received from each query head, summed over queries.

    Costs a blockwise second pass over the scores (about half of the attention again); n values a query head. While decoding it is
    the mass of the current block only: a scorer that wants the history keeps it as a statistic.
    """

    key = "column_sums"
    carried = False
    reads = "q"

    def empty(self, shape: Shape) -> Float32[Array, "b h g n"]:
        return jnp.zeros((shape.b, shape.h, shape.g, shape.n), jnp.float32)

    def observe(self, old: Float32[Array, "b h g n"], block: Block) -> Float32[Array, "b h g n"]:
        return old + self.now(block)

    def now(self, block: Block) -> Float32[Array, "b h g n"]:
        return block.column_sums()

    def serves(self, other) -> bool:
        return self == other


@dataclass(frozen=True)
class HiddenStates:
    """The normed inputs of the layer's attention, one row a prompt token: n·e values a layer, so ask for it only if you must.

    While decoding it is the current block's rows [b, t, e].
    """

    key = "hidden_states"
    carried = False
    reads = "x"

    def empty(self, shape: Shape) -> Float[Array, "b n e"]:
        return jnp.zeros((shape.b, shape.n, shape.e), shape.dtype)

    def observe(self, old: Float[Array, "b n e"], block: Block) -> Float[Array, "b n e"]:
        return lax.dynamic_update_slice_in_dim(old, self.now(block).astype(old.dtype), block.offset[0], axis=1)

    def now(self, block: Block) -> Float[Array, "b t e"]:
        return block.heads.x

    def serves(self, other) -> bool:
        return self == other


Need = WindowQueries | QueryMoments | ColumnSums | HiddenStates

#: What the published methods read, recorded by `kvjax.prefill` unless told otherwise.
STANDARD: frozenset[Need] = frozenset({WindowQueries(64), QueryMoments(4), ColumnSums()})


@struct.dataclass
class Evidence:
    """What one layer has recorded.

    Attributes:
        data: one entry for each recorded need, by its key.
        length: int32 [b], tokens of text seen so far; the next query stands at this position.
        needs: what `data` holds.
        rope: the model's rotary embedding, for scorers that reason about queries at other positions.
    """

    data: dict[str, Any]
    length: Int32[Array, " b"]
    needs: frozenset = struct.field(pytree_node=False)
    rope: Any = struct.field(pytree_node=False)

    def window_queries(self, size: int) -> Float[Array, "b h g w d"]:
        """The last `size` queries, oldest first."""
        return self.data[WindowQueries.key][..., -size:, :]

    def column_sums(self) -> Float32[Array, "b h n"]:
        """Mass received, averaged over the query heads of a KV head."""
        return self.column_sums_by_head().mean(2)

    def column_sums_by_head(self) -> Float32[Array, "b h g n"]:
        """Mass received from each query head."""
        return self.data[ColumnSums.key]

    def moments(self, skip: int) -> Moments:
        return self.data[QueryMoments(skip).key]

    def hidden_states(self) -> Float[Array, "b n e"]:
        return self.data[HiddenStates.key]


def empty(needs: frozenset, shape: Shape, rope: Any) -> Evidence:
    """Evidence before the first token."""
    data = {need.key: need.empty(shape) for need in needs}
    return Evidence(data=data, length=jnp.zeros(shape.b, jnp.int32), needs=needs, rope=rope)


def observe(seen: Evidence, block: Tokens) -> Evidence:
    """Fold one block of tokens into every recorded need."""
    data = {need.key: need.observe(seen.data[need.key], block) for need in seen.needs}
    return seen.replace(data=data, length=block.offset + block.count)


def union(*groups: frozenset) -> frozenset[Need]:
    """The smallest set of needs that serves all of `groups`: of several windows only the longest."""
    everything = frozenset().union(*groups)
    return frozenset(n for n in everything if not any(m != n and m.serves(n) for m in everything))


def missing(recorded: frozenset, wanted: frozenset) -> frozenset[Need]:
    """The wanted needs that nothing recorded serves."""
    return frozenset(w for w in wanted if not any(r.serves(w) for r in recorded))


def restrict(seen: Evidence, wanted: frozenset) -> Evidence:
    """Only what `wanted` goes on reading while decoding: the fold's carried part, windows cut to the size wanted."""
    data = {}
    for need in wanted:
        if not need.carried:
            continue
        data[need.key] = seen.window_queries(need.size) if isinstance(need, WindowQueries) else seen.data[need.key]
    return seen.replace(data=data, needs=frozenset(n for n in wanted if n.carried))


def concatenate(rows: list[Evidence]) -> Evidence:
    """The evidence of several rows as one batch."""
    return jax.tree.map(lambda *x: jnp.concatenate(x), *rows)
