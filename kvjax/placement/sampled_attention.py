"""Attention over the keys in host memory whose hashes meet the query's, each weighted by how likely that was (MagicPIG)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt16

from kvjax.kernels.dispatch import compiles_for
from kvjax.placement.host_attention import _LOW, SLOTS
from kvjax.placement.on_host import _DEVICE, _on_host
from kvjax.types import Queries

#: Added to a chance before its logarithm, as in the release.
_LEAST = np.float32(1e-4)


class SampledPart(NamedTuple):
    """Centred keys, values, which of them are there, and each key's hash in every table; all in pinned host memory.

    n is a multiple of `SLOTS`, the slots of a block.
    """

    k: Float[Array, "b h n d"]
    v: Float[Array, "b h n d"]
    held: Bool[Array, "b h n"]
    codes: UInt16[Array, "b h n tables"]


def chance(cosine: Float32[Array, "*a"], *, bits: int, tables: int) -> Float32[Array, "*a"]:
    """u = 1 - (1 - p^K)^L - L p^K (1 - p^K)^(L - 1), p = 1 - arccos(cos) / π: that two tables or more have q and k in one bucket.

    Source: MagicPIG, arXiv 2410.16179, section 4.
    """
    # arctan2 of numbers alone: arccos would bring constants, which another memory does not hold
    angle = 2 * jnp.arctan2(jnp.sqrt(jnp.maximum(1 - cosine, np.float32(0))), jnp.sqrt(jnp.maximum(1 + cosine, np.float32(0))))
    one = jnp.minimum((1 - angle / np.float32(np.pi)) ** bits, np.float32(1 - 2**-23))
    return -jnp.expm1(tables * jnp.log1p(-one) + jnp.log1p(tables * one / (1 - one)))  # small chances to their last digits


def sampled_attention(
    part: SampledPart, q: Queries, codes: UInt16[Array, "b h g t tables"], *, bits: int
) -> tuple[Float32[Array, "b h g t d"], Float32[Array, "b h g t"], Int32[Array, " b"]]:
    """(out, lse, count): softmax of q·k_j/√d - log(u_j + 10⁻⁴) over {j: q and k_j have the same hash in two tables or more}.

    Args:
        part: on the host.   q: queries.   codes: their hashes.   bits: K, of a hash.

    Returns:
        The estimate, its log denominator, -inf where nothing met, and how many pairs of a query head and a key met in each row.
    Source: MagicPIG, arXiv 2410.16179, section 4; its release. Differs: the host computes with XLA, hashes are compared one by one.
    """

    def attend(part: SampledPart, q: Queries, codes: Array) -> tuple[Array, Array, Array]:
        return _attention(part, q, codes, bits)

    if compiles_for() == "cpu":  # one memory: nothing crosses
        return attend(jax.device_put(part, _DEVICE), q, codes)
    return jax.device_put(_on_host(attend)(part, q, codes), _DEVICE)


def _attention(part: SampledPart, q: Queries, codes: Array, bits: int) -> tuple[Array, Array, Array]:
    """Region after region, block after block of slots: of shapes that do not know how long the other rows are, so no bit does."""
    b, h, g, _, d = q.shape
    queries = q.astype(jnp.float32).reshape(b * h, g, d), codes.reshape(b * h, g, -1)
    keys = jax.tree.map(lambda x: x.reshape(b * h, -1, SLOTS, *x.shape[3:]), part)

    def region(given: tuple) -> tuple[Array, Array, Array]:
        (q, codes), keys = given
        none = q[:, 0] * np.float32(0)  # of the operands' memory, as a constant would not be

        def step(carry: tuple, block: SampledPart) -> tuple[tuple, None]:
            return _further(*carry, *_logits(q, codes, block, bits), block.v), None

        nothing = none + _LOW, none, q * np.float32(0), none.astype(jnp.int32)
        (high, total, out, count), _ = lax.scan(step, nothing, keys)
        return out / jnp.maximum(total, np.float32(1e-30))[:, None], high + jnp.log(total), count

    out, lse, count = lax.map(region, (queries, keys))
    return out.reshape(q.shape), lse.reshape(b, h, g, 1), count.reshape(b, h * g).sum(-1)


def _logits(
    q: Float32[Array, "g d"], codes: UInt16[Array, "g tables"], block: SampledPart, bits: int
) -> tuple[Float32[Array, "g n"], Int32[Array, "g n"]]:
    """q·k/√d - log(u + 10⁻⁴) of one KV head's queries and a block's keys, and which of them met."""
    k = block.k.astype(jnp.float32)
    z = jnp.matmul(q, k.T, precision="highest")
    lengths = jnp.sqrt((q * q).sum(-1))[:, None] * jnp.sqrt((k * k).sum(-1))
    u = chance(z / jnp.maximum(lengths, np.float32(1e-30)), bits=bits, tables=codes.shape[-1])
    same = (codes[:, None] == block.codes).astype(jnp.int32).sum(-1)
    met = (same >= np.int32(2)) & block.held
    return z / np.float32(np.sqrt(q.shape[-1])) - jnp.log(u + _LEAST), met.astype(jnp.int32)


def _further(high: Array, total: Array, out: Array, count: Array, z: Array, met: Array, v: Array) -> tuple[Array, ...]:
    """The running maximum, sum, weighted values and count with one block more; a block of nothing changes no bit."""
    seen = met.astype(jnp.float32)
    z = jnp.minimum(z, (np.float32(1) - np.float32(2) * seen) * _LOW)
    new = jnp.maximum(high, z.max(-1))
    p, fade = jnp.exp(z - new[:, None]) * seen, jnp.exp(high - new)
    out = out * fade[:, None] + jnp.matmul(p, v.astype(jnp.float32), precision="highest")
    return new, total * fade + p.sum(-1), out, count + met.sum(-1)
