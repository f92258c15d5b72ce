"""Appending to the regions of a pool: what is computed, and which implementation computes it."""

import jax
from jaxtyping import Array, Int32, PyTree

from kvjax.kernels.dispatch import Operation

from . import reference, xla

#: Implementations by name; each module defines `append`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_OPERATION = Operation("append", IMPLEMENTATIONS, {}, __package__)


def append(
    pools: PyTree,
    rows: PyTree,
    start: Int32[Array, "b h"],
    length: Int32[Array, "b h"],
    count: Int32[Array, " b"],
    *,
    impl: str | None = None,
) -> PyTree:
    """Rows behind each region's last slot: pool[start + length + i] = rows[b, h, i] for i < count[b].

    Args:
        pools: a pytree of arrays [s, ...]: keys (or the codes an encoder made of them), values, positions, statistics.
        rows: the same structure, [b, h, t, ...] each; cast to their pool's dtype.
        start: first slot of each region.   length: slots it holds.   count: rows of each batch row that are real, 0 to t; all data.
        impl: a key of IMPLEMENTATIONS; None chooses.

    Returns:
        The pools; in place where the program owns them (a donated argument of jit). The caller adds `count` to the lengths and
        answers for regions with room: rows that do not fit overwrite the next region, those beyond the pool are dropped.

    Raises:
        ValueError: rows that do not fit their pool, an implementation that is unknown.

    Source: none; the counterpart of a paged cache's "reshape and cache" step.
    """
    _check(pools, rows, start, length, count)
    return _OPERATION.call(impl, "append", pools, rows, start, length, count)


def _check(pools, rows, start, length, count) -> None:
    """Refuse what would otherwise fail, or broadcast, far from the caller."""
    if jax.tree.structure(pools) != jax.tree.structure(rows):
        raise ValueError(f"rows must be like the pools, {jax.tree.structure(pools)}; got {jax.tree.structure(rows)}")
    if length.shape != start.shape or count.shape != start.shape[:1]:
        raise ValueError(f"length must be {start.shape} (b, h) and count (b); got {length.shape} and {count.shape}")
    tokens = {x.shape[2:3] for x in jax.tree.leaves(rows)}
    for pool, new in zip(jax.tree.leaves(pools), jax.tree.leaves(rows), strict=True):
        if len(tokens) > 1 or new.shape[:2] != start.shape or new.shape[3:] != pool.shape[1:]:
            raise ValueError(f"rows must be {start.shape} (b, h) by t by a pool's row, {pool.shape[1:]}; got {new.shape}")
