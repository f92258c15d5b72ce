"""Attention of an observation window in plain XLA: two passes over blocks of keys.

The first finds the softmax's denominators, the second sums the probabilities over the window. A prompt of one block is done in one
go (the compiler sees that both passes make the same products); a longer one pays for its products twice and never holds w times
n of them. Trip counts are static: gradients flow through both passes.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from .mask import sees

#: Below every score, and finite: exp(-inf - LOW) is 0 and not NaN.
LOW = float(jnp.finfo(jnp.float32).min)


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: scores of a block, of all rows, heads and queries together (32 MB); a block has at least 256 keys."""

    scores: int = 1 << 23

    def block(self, rows: int, n: int) -> int:
        """Keys of a block for so many query rows and n keys."""
        return min(n, max(256, self.scores // max(rows, 1)))


@partial(jax.jit, static_argnames=("config",))
def scores(q, k, pos, valid, length, window=None, *, config: Config = Config()) -> Float32[Array, "b h g n"]:
    """See `api.window_scores`."""
    products, n = partial(_products, q, k, pos, valid, length, window), k.shape[2]
    block = config.block(math.prod(q.shape[:-1]), n)
    whole, rest = n - n % block, n % block
    high, total = _denominators(products, q.shape[:-1], block, whole, rest)

    def mass(first, size):
        return (jnp.exp(products(first, size) - high[..., None]) / total[..., None]).sum(3)

    parts = lax.map(lambda first: mass(first, block), jnp.arange(0, whole, block))
    sums = jnp.moveaxis(parts, 0, 3).reshape(*q.shape[:3], whole)
    return jnp.concatenate([sums, mass(whole, rest)], -1) if rest else sums


def _denominators(products, rows: tuple[int, ...], block: int, whole: int, rest: int):
    """(maximum, sum of exponentials below it) of every query's scores; what is left of the keys first, then the whole blocks."""

    def fold(carry, z):
        high, total = carry
        new = jnp.maximum(high, z.max(-1))
        return new, total * jnp.exp(high - new) + jnp.exp(z - new[..., None]).sum(-1)

    carry = jnp.full(rows, LOW), jnp.zeros(rows)
    if rest:
        carry = fold(carry, products(whole, rest))
    (high, total), _ = lax.scan(lambda carry, i: (fold(carry, products(i, block)), None), carry, jnp.arange(0, whole, block))
    return high, jnp.maximum(total, jnp.finfo(jnp.float32).tiny)


def _products(q, k, pos, valid, length, window, first, size: int) -> Float32[Array, "b h g w size"]:
    """Scaled products with keys first .. first + size - 1, -inf where a query does not see the slot."""
    w, d = q.shape[3:]

    def part(x):
        return lax.dynamic_slice_in_dim(x, first, size, axis=2)

    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, part(k), preferred_element_type=jnp.float32) / math.sqrt(d)
    at = length[:, None] - w + jnp.arange(w)
    return jnp.where(sees(part(pos), part(valid), at, window), z, -jnp.inf)
