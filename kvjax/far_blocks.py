"""Blocks of tokens far behind a query, each represented by the mean of a few of its keys (InfLLM).

The first `initial` tokens are always read, the last `local` too; what lies between is cut into blocks of `block` tokens.
Axis letters: m blocks, c chosen blocks.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.encode.positions import turned
from kvjax.protocols import Rope
from kvjax.types import Keys, Queries


@dataclass(frozen=True)
class FarSizes:
    """Tokens of each kind, hashable.

    Attributes:
        local: last tokens at their own distances.   initial: first tokens, always read.
        block: tokens of a block.   top: blocks a query reads.   representatives: keys that stand for a block.
    """

    local: int = 4096
    initial: int = 128
    block: int = 128
    top: int = 16
    representatives: int = 4

    def __post_init__(self):
        if min(self.local, self.block, self.top, self.representatives) < 1 or self.initial < 0:
            raise ValueError(f"sizes are of 1 token, block or key at least, initial of 0; got {self}")
        if self.representatives > self.block:
            raise ValueError(f"a block of {self.block} tokens has no {self.representatives} representatives")

    def left(self, position: Int32[Array, "*b"]) -> Int32[Array, "*b"]:
        """Whole blocks that lie outside the local window of a query at `position`."""
        return jnp.maximum(position - self.local - self.initial, 0) // self.block

    def blocks(self, tokens: int) -> int:
        """Whole blocks of so many tokens."""
        return max(tokens - self.initial, 0) // self.block

    def slots(self, chosen: Int32[Array, "b c"]) -> Int32[Array, "b c_block"]:
        """Places of the chosen blocks' tokens."""
        inside = jnp.arange(self.block, dtype=jnp.int32)
        return (self.initial + chosen[..., None] * self.block + inside).reshape(chosen.shape[0], -1)


def representatives(
    received: Float32[Array, "b h g n"], k: Keys, sizes: FarSizes, m: int, rope: Rope | None = None
) -> Float32[Array, "b h g m d"]:
    """The mean of each block's keys that were given most while they were local, by query head; equal ones: the earlier.

    k are keys as the text has them, turned back to where they were before the rotary embedding; un-rotated ones where rope is None.
    """
    b, h, g, _ = received.shape
    inside = lax.slice_in_dim(received, sizes.initial, sizes.initial + m * sizes.block, axis=3)
    inside = inside.reshape(b, h, g, m, sizes.block)
    best = lax.top_k(inside, sizes.representatives)[1].astype(jnp.int32)
    at = sizes.initial + jnp.arange(m, dtype=jnp.int32)[:, None] * sizes.block + best
    at = at.reshape(b, h, -1)
    keys = jnp.take_along_axis(k, at[..., None], 2).astype(jnp.float32)
    keys = keys if rope is None else turned(keys, -at, rope)
    return keys.reshape(b, h, g, m, sizes.representatives, -1).mean(4)


def relevance(q: Float32[Array, "b h g d"], keys: Float32[Array, "b h g m d"]) -> Float32[Array, "b m"]:
    """Σ_hg q · k_m: one number a block for all heads of a layer."""
    return jnp.einsum("bhgd,bhgmd->bm", q, keys.astype(jnp.float32), precision="highest")


def best_blocks(
    relevance: Float32[Array, "b m"], left: Int32[Array, " b"], top: int
) -> tuple[Int32[Array, "b c"], Bool[Array, "b c"]]:
    """The most relevant of the first `left` blocks, best first, and which entries are any; all of them where there are fewer."""
    m = relevance.shape[1]
    there = jnp.where(jnp.arange(m) < left[:, None], relevance, -jnp.inf)
    scores, chosen = lax.top_k(there, min(top, m))
    return chosen.astype(jnp.int32), scores > -jnp.inf


def part(
    z: Float32[Array, "b h g t n"], seen: Bool[Array, "b _ _ t n"], v: Float[Array, "b h n d"]
) -> tuple[Queries, Float32[Array, "b h g t"]]:
    """(out, lse) of softmax attention over the slots seen; 0 and -inf where there are none."""
    z = jnp.where(seen, z, -jnp.inf)
    high = jnp.maximum(z.max(-1, initial=-jnp.inf), np.float32(-1e30))
    p = jnp.exp(z - high[..., None])
    total = p.sum(-1)
    out = jnp.einsum("bhgtn,bhnd->bhgtd", p, v.astype(jnp.float32)) / jnp.maximum(total, 1e-30)[..., None]
    return out, jnp.where(total > 0, high + jnp.log(jnp.maximum(total, 1e-30)), -jnp.inf)
