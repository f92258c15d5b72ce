"""One decode attention over codes of 8, 4 and 2 bits beside our own attention over bfloat16 and float32, in one run."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import STREAK, conditions, interleaved, summary
from kvjax.kernels.packed_attention import Packed, packed_attention
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.types import SLACK

#: Dense dtypes, and bits of codes.
DENSE, BITS = ("float32", "bfloat16"), (8, 4, 2)
#: Layers in one program, so that none finds its slots in a cache.
LAYERS = 4
#: A layer's keys and values.
Layer = tuple[jax.Array, jax.Array] | tuple[Packed, Packed]


def pieces() -> int:
    """Pieces of work that one number of query heads is."""
    return len(DENSE) + len(BITS)


def quantised(
    slots: int = 16384, heads: int = 8, d: int = 128, *, groups: Sequence[int] = (4,), group: int = 32, along: str = "token",
    layers: int = LAYERS, same: bool = False, rounds: int = 20, dtype: str = "float32", impl: str | None = None,
    done: Callable = lambda count: None,
) -> dict[str, Any]:  # fmt: skip
    """Time attention of one query a row over `heads` regions of `slots`.

    Args:
        groups: query heads of a KV head, one after the other.
        group: numbers that share a step of 16 bits.   along: of keys, "token" (pages, KIVI) or "channel"; values: "channel".
        layers: in one program, each over slots of its own.   same: or all over the same ones: few enough of them stay in a
            processor's cache, and what is left is the arithmetic.
        rounds: counted runs; medians are reported.
        dtype: of the queries: on a GPU the products are in it.
        impl: of the attention over codes; None lets the library choose.

    Raises:
        ValueError: slots or a head dimension that groups do not divide; an implementation that is unknown or cannot run here.

    Returns:
        conditions; bytes of a layer by storage; cells by query heads: ms of a layer, time over that of bfloat16, and error: the
        largest difference from decoding and attending, relative to its row's scale.
    """
    if slots % group or d % group:
        raise ValueError(f"slots and the head dimension must be multiples of the group of {group}; got {slots} and {d}")
    own = 1 if same else layers
    pools = {name: _dense(slots, heads, d, own, name) for name in DENSE}
    pools |= {f"{bits} bits": _packed(slots, heads, d, own, bits=bits, group=group, along=along) for bits in BITS}
    share = slots * heads / _rows(slots, heads) / own  # without the slack at a pool's end
    sizes = {name: round(share * sum(x.nbytes for x in jax.tree.leaves(made))) for name, made in pools.items()}
    cells = {f"{g} query heads a KV head": _measure(pools, slots, heads, d, g, layers, rounds, dtype, impl, done) for g in groups}
    program = f"{layers} layers in a program" + ", all of the same slots" * same
    words = f"{heads} KV heads of {slots} slots, d = {d}, groups of {group} along {along}s, {program}"
    return conditions("quantised", dtype, words) | {"memory": sizes, "cells": cells}


def _measure(pools, slots, heads, d, g, layers, rounds, dtype, impl, done) -> dict[str, Any]:
    q = jax.random.normal(jax.random.key(g), (1, heads, g, 1, d), jnp.dtype(dtype))
    work = {name: _chained(name, made, q, slots, heads, layers, impl) for name, made in pools.items()}
    times = {name: summary(values)["median"] for name, values in interleaved(work, rounds, streak=STREAK, done=done).items()}
    errors = {f"{bits} bits": _error(pools[f"{bits} bits"][0], q, slots, heads, impl) for bits in BITS}
    return {
        "ms": {name: round(1e3 * value / layers, 4) for name, value in times.items()},
        "over bfloat16": {name: round(value / times["bfloat16"], 3) for name, value in times.items()},
        "error": errors,
    }


def _rows(slots: int, heads: int) -> int:
    return slots * heads + SLACK


def _where(slots: int, heads: int) -> tuple[jax.Array, ...]:
    """Positions, starts, lengths and the query's position."""
    start = slots * jnp.arange(heads, dtype=jnp.int32)[None]
    return jnp.zeros(_rows(slots, heads), jnp.uint16), start, jnp.full((1, heads), slots, jnp.int32), jnp.zeros((1, 1), jnp.int32)


def _dense(slots: int, heads: int, d: int, layers: int, dtype: str) -> list[tuple[jax.Array, jax.Array]]:
    keys = jax.random.split(jax.random.key(0), 2 * layers)

    def make(key: jax.Array) -> jax.Array:
        return jax.random.normal(key, (_rows(slots, heads), d), jnp.dtype(dtype))

    return [(make(keys[2 * i]), make(keys[2 * i + 1])) for i in range(layers)]


def _packed(slots: int, heads: int, d: int, layers: int, *, bits: int, group: int, along: str) -> list[tuple[Packed, Packed]]:
    keys = jax.random.split(jax.random.key(bits), 2 * layers)
    how = dict(rows=_rows(slots, heads), heads=heads, slots=slots, d=d, bits=bits, group=group)
    return [
        (_side(keys[2 * i], page=group if along == "token" else 1, **how), _side(keys[2 * i + 1], page=1, **how))
        for i in range(layers)
    ]


def _side(key: jax.Array, *, rows: int, heads: int, slots: int, d: int, bits: int, group: int, page: int) -> Packed:
    """Random codes; numbers of about a normal's range."""
    one, two, three = jax.random.split(key, 3)
    packed = (rows // page, group * bits // 32, d) if page > 1 else (rows, d * bits // 32)
    meta = (rows // page, d) if page > 1 else (rows, d // group)
    step = 4 / ((1 << bits) - 1)
    return Packed(
        words=jax.random.bits(one, packed, jnp.uint32),
        scale=(step * jax.random.uniform(two, meta, minval=0.5, maxval=1.5)).astype(jnp.float16),
        low=(jax.random.normal(three, meta) - 2).astype(jnp.float16),
        tail=jnp.zeros((1, heads, 0, d)), coded=jnp.full((1, heads), slots, jnp.int32), bits=bits, page=page,
    )  # fmt: skip


def _chained(
    name: str, made: list[Layer], q: jax.Array, slots: int, heads: int, layers: int, impl: str | None
) -> Callable[[], Any]:
    """A layer's queries follow from the layer's before, as in a decode step; layers go round over what is made."""
    where = _where(slots, heads)

    def run(x, made, where):
        for k, v in (made[i % len(made)] for i in range(layers)):
            if isinstance(k, Packed):
                x = x + packed_attention(x, k, v, *where, impl=impl)[0]
            else:
                x = x + ragged_attention(x.astype(k.dtype), k, v, *where)[0].astype(x.dtype)
        return x

    compiled = jax.jit(run)
    return lambda: compiled(q, made, where)


def _error(made: tuple[Packed, Packed], q: jax.Array, slots: int, heads: int, impl: str | None) -> float:
    got, want = (packed_attention(q, *made, *_where(slots, heads), impl=name)[0] for name in (impl, "xla"))
    got, want = (np.asarray(x, np.float64) for x in (got, want))
    scale = np.maximum(np.abs(want).max(-1, keepdims=True), 1e-3)
    return float(np.max(np.abs(got - want) / scale))
