"""A prompt's attention rows, reduced a tile at a time."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.evidence.reduce import Reduction, RowsAt
from kvjax.kernels.dispatch import compiles_for
from kvjax.types import Keys

#: Numbers of a tile of rows that are alive at once, and on a CPU, where they should stay in a core's second-level cache.
_AT_ONCE, _ON_CPU = 1 << 22, 1 << 19
#: Rows that are worth reading all keys for.
_WORTH = 64


def rows_of_a_tile(rows: int, numbers: int) -> int:
    """How many of `rows` rows of so many numbers, over all heads, are reduced at once."""
    most = _AT_ONCE // numbers
    if compiles_for() == "cpu":
        most = max(_ON_CPU // numbers, min(_WORTH, most))
    return max(1, min(rows, most))


def reduced_rows(
    reduction: Reduction, q: Float[Array, "b h g t d"], k: Keys, lse: Float32[Array, "b h g t"], *, offset: Int32[Array, ""],
    count: Int32[Array, " b"], window: int | None, mask: Callable[[Int32[Array, " r"]], Bool[Array, "b h g r n"]] | None = None,
) -> PyTree:  # fmt: skip
    """The reduction of the rows p_ij = exp(q_i k_j / sqrt(d) - lse_i) of the first `count` queries; query i is at offset + i.

    `mask` says of some queries which keys they see, where that is less than all before them.
    """
    b, h, g, t, _ = q.shape
    n = k.shape[2]
    rows = rows_of_a_tile(t, b * h * g * n)
    tiles = -(-t // rows)
    keys = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (b, h, n))
    pad = ((0, 0),) * 3 + ((0, tiles * rows - t),)
    q, lse = jnp.pad(q, (*pad, (0, 0))), jnp.pad(lse, pad)

    def tile(i, state):
        first = i * rows
        index = first + jnp.arange(rows, dtype=jnp.int32)
        positions = jnp.broadcast_to(offset + index, (b, rows))
        seen = visible(positions, n, window) & (index < count[:, None])[..., None]
        seen = jnp.broadcast_to(seen[:, None, None], (b, h, g, rows, n))
        seen = seen if mask is None else seen & mask(index)
        part, denominator = (lax.dynamic_slice_in_dim(x, first, rows, axis=3) for x in (q, lse))
        z = jnp.einsum("bhgtd,bhnd->bhgtn", part, k, preferred_element_type=jnp.float32) / jnp.sqrt(jnp.float32(q.shape[-1]))
        p = jnp.where(seen, jnp.exp(z - denominator[..., None]), 0.0)
        where = RowsAt(keys=keys, steps=jnp.zeros_like(positions))
        return reduction.join(state, reduction.of_rows_at(p, positions, seen, where))

    return lax.fori_loop(0, tiles, tile, reduction.empty((b, h, g, n)))


def visible(positions: Int32[Array, "b t"], n: int, window: int | None) -> Bool[Array, "b t n"]:
    """Which of the keys at positions 0 .. n - 1 a query sees."""
    j = jnp.arange(n, dtype=jnp.int32)
    seen = j <= positions[..., None]
    return seen if window is None else seen & (j > positions[..., None] - window)
