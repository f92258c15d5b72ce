"""The decode loop over a pool of any size, to be compiled and looked at: what it copies, what it writes in place."""

import importlib
import re
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np

from kvjax.compress.run import compress
from kvjax.decode.headroom import make_room
from kvjax.decode.sample import Greedy
from kvjax.decode.step import Spec

decode = importlib.import_module("kvjax.decode.loop")


def operands(lm, pre, policy, slots: int):
    """Positional arguments of `decode._loop` for 16 tokens after `pre`, cut under the policy, the pool grown to `slots` slots."""
    cache, cap = make_room(compress(pre, policy), policy, 16)
    rest = Greedy(), jax.random.key(0), decode._stops(lm, None), np.int32(16)
    return Spec.of(lm.decoder, policy, cap), lm.params, *_grown(cache, slots).split(), *rest


def _grown(cache, slots: int):
    """The cache, and each of its parts, with pools of that many slots."""
    grown = lambda x: jax.device_put(jnp.zeros((slots, *x.shape[1:]), x.dtype), x.sharding)  # noqa: E731
    paged = lambda x: jnp.zeros((slots * x.shape[0] // cache.slots, *x.shape[1:]), x.dtype)  # noqa: E731
    by_slot = lambda x: x.shape[:1] == (cache.slots,)  # noqa: E731
    keys, values = (jax.tree.map(lambda x: grown(x) if by_slot(x) else paged(x), codes) for codes in (cache.k, cache.v))
    whole = jax.tree.map(lambda x: grown(x) if by_slot(x) else x, cache.replace(parts=()))
    return whole.replace(k=keys, v=values, parts=tuple(_grown(part, slots) for part in cache.parts))


def pools(cache) -> list[jax.Array]:
    """What the cache and its parts hold with one row a slot, or a page of slots."""
    paged = [x for x in jax.tree.leaves((cache.k, cache.v)) if x.shape[0] < cache.slots]
    own = [x for x in jax.tree.leaves(cache.replace(parts=())) if x.shape[:1] == (cache.slots,)] + paged
    return [*own, *(x for part in cache.parts for x in pools(part))]


def copies(program, rows: int) -> list[str]:
    """Instructions of a compiled program that copy an array of this many rows; rows of no numbers are nothing to copy."""
    copied = rf"\[{rows}(?!,0\])[],].* copy(-start)?\("
    return [line for line in program.as_text().splitlines() if re.search(copied, line)]


@contextmanager
def unchecked():
    """Shapes may stand where arrays are declared."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
