"""Moving slots within a pool and between pools: what is computed, and which implementation computes it."""

import jax
from jaxtyping import Array, Int32, PyTree

from kvjax.kernels.dispatch import Operation

from . import reference, xla
from .moves import Moves

#: Implementations by name; each module defines `compact`, `rewrite`, `pick` and `move_regions`.
IMPLEMENTATIONS = {"xla": xla, "reference": reference}
_REVERSED = dict.fromkeys(("compact", "rewrite", "pick"), "reference")
_OPERATION = Operation("compact", IMPLEMENTATIONS, {"triton": "cuda"}, __package__, reversed_as=_REVERSED)


def compact(pools: PyTree, start: Int32[Array, "b h"], moves: Moves, *, impl: str | None = None) -> PyTree:
    """Holes filled: pool[start + targets_i] = pool[start + sources_i] for i < count, in every region.

    Args:
        pools: a pytree of arrays [s, ...].
        start: first slot of each region.
        moves: from `plan`: sources lie at or above a region's new end and targets below it, so their order does not matter.
        impl: a key of IMPLEMENTATIONS, or "triton" (NVIDIA); None chooses by platform.

    Returns:
        The pools; in place where the program owns them (a donated argument of jit). Slots above the new ends are unspecified.

    Raises:
        ValueError: moves for other regions, an implementation that is unknown.

    Source: none; a region is in no order afterwards, which attention does not mind.
    """
    if moves.count.shape != start.shape:
        raise ValueError(f"moves are for regions {moves.count.shape} (b, h), start is {start.shape}")
    return _OPERATION.call(impl, "compact", pools, start, moves)


def rewrite(
    pools: PyTree, rows: PyTree, slots: Int32[Array, "b h n"], count: Int32[Array, "b h"], *, impl: str | None = None
) -> PyTree:
    """Rows written back: pool[slots_i] = rows_i for i < count, in every region.

    Args:
        pools: a pytree of arrays [s, ...].   rows: the same structure, [b, h, n, ...] each; cast to their pool's dtype.
        slots: slots of the pool, none named twice among the first `count`.   count: rows to write, 0 to n; data.
        impl: a key of IMPLEMENTATIONS, or "triton" (NVIDIA); None chooses by platform.

    Returns:
        The pools; in place where the program owns them. It costs the rows that are written, not those that could be.

    Raises:
        ValueError: rows that do not fit their pool, an implementation that is unknown.
    """
    _check_rows(pools, rows, slots.shape, count, "(b, h, n)")
    return _OPERATION.call(impl, "rewrite", pools, rows, slots, count)


def pick(
    pools: PyTree,
    rows: PyTree,
    order: Int32[Array, "b h m"],
    start: Int32[Array, "b h"],
    count: Int32[Array, "b h"],
    *,
    impl: str | None = None,
) -> PyTree:
    """Chosen rows packed into regions: pool[start + i] = rows[order_i] for i < count, in every region.

    Args:
        pools: a pytree of arrays [s, ...].   rows: the same structure, [b, h, n, ...] each; cast to their pool's dtype.
        order: which of the n rows; the first `count` count.   start: first slot of each region, ascending.   count: 0 to m; data.
        impl: a key of IMPLEMENTATIONS, or "triton" (NVIDIA); None chooses by platform.

    Returns:
        The pools; in place where the program owns them. Up to BLOCK slots behind a region's last row are unspecified: regions are
        packed in ascending order, and SLACK ends a pool.

    Raises:
        ValueError: rows that do not fit their pool, an implementation that is unknown.
    """
    _check_rows(pools, rows, order.shape[:2], count, "(b, h) by n")
    return _OPERATION.call(impl, "pick", pools, rows, order, start, count)


def move_regions(
    source: PyTree,
    old: Int32[Array, "*r"],
    new: Int32[Array, "*r"],
    length: Int32[Array, "*r"],
    *,
    slots: int,
    impl: str | None = None,
) -> PyTree:
    """Regions in another pool: out[new + i] = source[old + i] for i < length, in every region.

    Args:
        source: a pytree of arrays [s, ...]; they stay as they are.
        old, new: first slot of each region in the source and in what is returned; new regions follow each other in ascending order.
        length: slots of each region; all data.
        slots: slots of the new pools; static. At least SLACK beyond the last region, in the source too: `dynamic_slice` clamps.
        impl: a key of IMPLEMENTATIONS, or "triton" (NVIDIA); None chooses by platform.

    Returns:
        New pools; slots of no region are unspecified.
    """
    return _OPERATION.call(impl, "move_regions", source, old, new, length, slots=slots)


def _check_rows(pools, rows, shape: tuple[int, ...], count, axes: str) -> None:
    """Refuse rows that do not begin with the axes of `shape`, or are not as their pool's."""
    for pool, new in zip(jax.tree.leaves(pools), jax.tree.leaves(rows), strict=True):
        if new.shape[: len(shape)] != shape or new.shape[3:] != pool.shape[1:] or count.shape != shape[:2]:
            raise ValueError(
                f"rows must be {shape} {axes} by a pool's row, count (b, h); got {new.shape}, {pool.shape}, {count.shape}"
            )
