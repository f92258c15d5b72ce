"""Moving slots on a GPU by Triton: one launch a pool, whatever is moved; pools are written in place."""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
import jax_triton as jt
import triton

from . import rows as kernels


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: programs that all regions share, rows and numbers of a program's one step at most, warps a program."""

    programs: int = 2048
    rows: int = 256
    tile: int = 4096
    warps: int = 4

    def of(self, pool) -> dict:
        """A row's numbers, and rows of one step."""
        d = math.prod(pool.shape[1:])
        wide = triton.next_power_of_2(d)
        return dict(D=d, D2=wide, ROWS=max(1, min(self.rows, self.tile // wide)), num_warps=self.warps)


def refuses(pools, *rest, **static) -> str | None:
    """Why these operands are not for this implementation, or None."""
    empty = next((x.shape for x in jax.tree.leaves((pools, rest)) if not x.size and not _bare(x)), None)
    return None if empty is None else f"takes pools and lists that are not empty, got one of {empty}"


@partial(jax.jit, static_argnames="config")
def compact(pools, start, moves, *, config: Config = Config()):
    """See `api.compact`."""
    at, to = (_list(start, offsets) for offsets in (moves.sources, moves.targets))
    return jax.tree.map(lambda pool: _move(None, pool, at, to, moves.count, config=config), pools)


@partial(jax.jit, static_argnames="config")
def rewrite(pools, rows, slots, count, *, config: Config = Config()):
    """See `api.rewrite`."""
    at, to = _run(_firsts(rows)), _list(jnp.zeros_like(count), slots)
    return jax.tree.map(lambda pool, x: _move(_flat(x), pool, at, to, count, config=config), pools, rows)


@partial(jax.jit, static_argnames="config")
def pick(pools, rows, order, start, count, *, config: Config = Config()):
    """See `api.pick`."""
    at, to = _list(_firsts(rows), order), _run(start)
    return jax.tree.map(lambda pool, x: _move(_flat(x), pool, at, to, count, config=config), pools, rows)


@partial(jax.jit, static_argnames=("slots", "config"))
def move_regions(source, old, new, length, *, slots: int, config: Config = Config()):
    """See `api.move_regions`."""
    at, to = _run(old), _run(new)
    empty = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), source)
    return jax.tree.map(lambda pool, x: _move(x, pool, at, to, length, config=config), empty, source)


def _bare(x) -> bool:
    """Whether slots [s, 0], or rows [b, h, n, 0], have no numbers: there is nothing to move."""
    return x.ndim in (2, 4) and x.shape[-1] == 0


def _firsts(rows):
    """The first of each region's rows [b, h, n, ...] among all of them."""
    b, h, n = jax.tree.leaves(rows)[0].shape[:3]
    return jnp.arange(b * h, dtype=jnp.int32) * n


def _run(first) -> tuple:
    """Slots that follow each other from each region's first: (first, no list, 0)."""
    return first.reshape(-1), first, 0


def _list(first, offsets) -> tuple:
    """Slots first + offsets of each region: (first, the list, its length)."""
    return first.reshape(-1), offsets, offsets.shape[-1]


def _flat(x):
    """Rows of all regions as one axis."""
    return x.reshape(math.prod(x.shape[:3]), *x.shape[3:])


def _move(source, pool, at: tuple, to: tuple, count, *, config: Config):
    """The pool with count rows of every region moved: from `source`, or within the pool where there is none."""
    if _bare(pool):
        return pool
    kernel, rows = (kernels.within, ()) if source is None else (kernels.between, (source,))
    operands = *at[:2], *to[:2], count, *rows, pool
    many = count.size
    return jt.triton_call(
        *operands, kernel=kernel, grid=(many, triton.cdiv(config.programs, many)), AT=at[2], TO=to[2], **config.of(pool),
        out_shape=jax.ShapeDtypeStruct(pool.shape, pool.dtype), input_output_aliases={len(operands) - 1: 0},
    )  # fmt: skip
