"""Reductions of attention rows to one state a key: what a scorer wants to know of how each key was attended to.

A reduction is a frozen pytree: `of_rows` of some rows, `join` of two stretches of rows that follow each other. Rows are
probabilities p [b, h, g, t, n] of t queries at `positions`; states are [b, h, g, n], by query head, before any mean over a group.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.types import Layer

Rows = Float32[Array, "b h g t n"]
PerKey = Float32[Array, "b h g n"]


@struct.dataclass
class RowsAt:
    """Where rows stand, for reductions that need more than the positions of their queries.

    Attributes:
        keys: position of each key.   steps: tokens since the prompt, each query's own included; 0 for a query of the prompt.
        prompt: tokens of the prompt; None where blocks know the order of keys alone (`kvjax.prefill.placed` tells them).
    """

    keys: Int32[Array, "b h n"]
    steps: Int32[Array, "b t"]
    prompt: Int32[Array, " b"] | None = None


def alike(one: PyTree, other: PyTree) -> bool:
    """Whether two stages are equal; numbers that are traced, which nobody can compare, are taken to be."""
    (mine, form), (yours, wanted) = jax.tree.flatten(one), jax.tree.flatten(other)
    return form == wanted and all(
        isinstance(x, jax.core.Tracer) or isinstance(y, jax.core.Tracer) or bool(x == y) for x, y in zip(mine, yours, strict=True)
    )


class Reduction:
    """Rows → a state for each key."""

    @property
    def key(self) -> str:
        """A name of its own."""
        raise NotImplementedError(f"{type(self).__name__} must define key")

    def empty(self, shape: tuple[int, int, int, int]) -> PyTree:
        """The state of keys [b, h, g, n] nobody has looked at."""
        raise NotImplementedError(f"{type(self).__name__} must define empty(shape)")

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PyTree:
        """The state after these rows alone; p is 0 where a query does not see a key."""
        raise NotImplementedError(f"{type(self).__name__} must define of_rows(p, positions, visible)")

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PyTree:
        """`of_rows`, for reductions that also depend on where the keys stand."""
        del where
        return self.of_rows(p, positions, visible)

    def at(self, layer: Layer) -> "Reduction":
        """The reduction as one layer uses it."""
        del layer
        return self

    def join(self, before: PyTree, after: PyTree) -> PyTree:
        """The state of both stretches of rows."""
        raise NotImplementedError(f"{type(self).__name__} must define join(before, after)")


@struct.dataclass
class Jointly(Reduction):
    """Several reductions of the same rows, which are computed once: a tuple of their states.

    Every reduction reads rows that are there, so that its state is to the bit what it is alone.
    """

    key = "jointly"
    reductions: tuple[Reduction, ...]

    def empty(self, shape: tuple[int, int, int, int]) -> tuple[PyTree, ...]:
        return tuple(reduction.empty(shape) for reduction in self.reductions)

    def of_rows_at(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"], where: RowsAt) -> PyTree:
        p = lax.optimization_barrier(p)
        return tuple(reduction.of_rows_at(p, positions, visible, where) for reduction in self.reductions)

    def join(self, before: tuple[PyTree, ...], after: tuple[PyTree, ...]) -> tuple[PyTree, ...]:
        return tuple(mine.join(*both) for mine, *both in zip(self.reductions, before, after, strict=True))


@struct.dataclass
class Sum(Reduction):
    """Σ_t p."""

    key = "sum"

    def empty(self, shape: tuple[int, int, int, int]) -> PerKey:
        return jnp.zeros(shape, jnp.float32)

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PerKey:
        del positions, visible
        return p.sum(3)

    def join(self, before: PerKey, after: PerKey) -> PerKey:
        return before + after


@struct.dataclass
class SumOfSquares(Sum):
    """Σ_t p²."""

    key = "sum_of_squares"

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PerKey:
        del positions, visible
        return (p * p).sum(3)


@struct.dataclass
class SumOfLogs(Sum):
    """Σ_t ln p over the queries that see the key, p floored at `least`."""

    key = "sum_of_logs"
    least: float = struct.field(pytree_node=False, default=1e-12)

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PerKey:
        del positions
        return jnp.where(visible, jnp.log(jnp.maximum(p, self.least)), 0.0).sum(3)


@struct.dataclass
class Max(Reduction):
    """max_t p."""

    key = "max"

    def empty(self, shape: tuple[int, int, int, int]) -> PerKey:
        return jnp.zeros(shape, jnp.float32)

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PerKey:
        del positions, visible
        return p.max(3)

    def join(self, before: PerKey, after: PerKey) -> PerKey:
        return jnp.maximum(before, after)


@struct.dataclass
class Below(Sum):
    """How many queries gave a key less than an even share: Σ_t 1[p < 1 / (keys query t sees)]."""

    key = "below_even_share"

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> PerKey:
        del positions
        even = 1.0 / jnp.maximum(visible.sum(-1, keepdims=True), 1)
        return (visible & (p < even)).sum(3).astype(jnp.float32)


@struct.dataclass
class Hits:
    """When a key was looked at: positions of the first and the last query with p >= alpha, and the largest gap between two.

    -1 where there was none; a single hit has gap 0.
    """

    first: Int32[Array, "*x"]
    last: Int32[Array, "*x"]
    gap: Int32[Array, "*x"]


@struct.dataclass
class HitGaps(Reduction):
    """First and last hit of each key, and the largest gap between hits: see `Hits`.

    Args:
        alpha: the probability from which on a query counts as a hit.
    """

    alpha: float = struct.field(pytree_node=False, default=1e-4)

    @property
    def key(self) -> str:
        return f"hit_gaps_{self.alpha}"

    def empty(self, shape: tuple[int, int, int, int]) -> Hits:
        first, last = (jnp.full(shape, -1, jnp.int32) for _ in range(2))  # two arrays: a program that is given both owns both
        return Hits(first=first, last=last, gap=jnp.zeros(shape, jnp.int32))

    def of_rows(self, p: Rows, positions: Int32[Array, "b t"], visible: Bool[Array, "b h g t n"]) -> Hits:
        at = positions[:, None, None, :, None]
        hit = visible & (p >= self.alpha)
        latest = lax.cummax(jnp.where(hit, at, -1), axis=3)
        before = jnp.pad(latest, ((0, 0),) * 3 + ((1, 0), (0, 0)), constant_values=-1)[:, :, :, :-1]
        gap = jnp.where(hit & (before >= 0), at - before, 0).max(3)
        far = jnp.iinfo(jnp.int32).max
        first = jnp.where(hit, at, far).min(3)
        return Hits(first=jnp.where(first == far, -1, first), last=latest[:, :, :, -1], gap=gap)

    def join(self, before: Hits, after: Hits) -> Hits:
        between = jnp.where((before.last >= 0) & (after.first >= 0), after.first - before.last, 0)
        return Hits(
            first=jnp.where(before.first >= 0, before.first, after.first),
            last=jnp.maximum(before.last, after.last),
            gap=jnp.maximum(jnp.maximum(before.gap, after.gap), between),
        )
