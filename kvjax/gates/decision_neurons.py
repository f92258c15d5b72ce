"""Decisions that a model retrofitted with DMC takes by one neuron of each key and query, and what is accumulated by them."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32

from kvjax.gates.gate import Gate

#: What every weight has at least: the precision of bfloat16, as in the release.
EPS = 2.0**-7


def merges(k: Float[Array, "*a d"], offset: float) -> Bool[Array, "*a"]:
    """α > 1/2, α = σ(k[d - 1] - offset) of an un-rotated key: its token goes into the slot of the token before it."""
    return k[..., -1].astype(jnp.float32) > offset


def query_neuron(q: Float[Array, "b h g t d"]) -> Float32[Array, "b h t"]:
    """Mean over the group of q[d - 1] of un-rotated queries."""
    return q[..., -1].astype(jnp.float32).mean(2)


def merge_weight(neuron: Float32[Array, "*a"], offset: float) -> Float32[Array, "*a"]:
    """ω = σ(neuron + offset) + ε: what a token weighs in its slot, `neuron` that of its queries."""
    return jax.nn.sigmoid(neuron + offset) + EPS


class KeyNeuron(Gate):
    """k[d - 1] of un-rotated keys. It has no weights: the neuron is the model's.

    Source: DMC, arXiv 2403.09636, section 3.1, as released.
    """

    reads = ("k_raw",)
    of_model = True

    def __call__(self, k: Float[Array, "b h t d"]) -> Float32[Array, "b h t"]:
        return k[..., -1].astype(jnp.float32)


class QueryNeuron(Gate):
    """`query_neuron` as a gate without weights."""

    reads = ("q_raw",)
    of_model = True

    def __call__(self, q: Float[Array, "b h g t d"]) -> Float32[Array, "b h t"]:
        return query_neuron(q)


def silent(x: Float[Array, "*a d"]) -> Float[Array, "*a d"]:
    """x with 0 for the neuron that decides. A rotation of its pair gives it a part of the other: so before and after one."""
    return x.at[..., -1].set(0)


def running_sums(
    x: Float32[Array, "b h n c"], w: Float32[Array, "b h n"], merges: Bool[Array, "b h n"] | Float32[Array, "b h n"],
    before: tuple[Float32[Array, "b h c"], Float32[Array, "b h"]] | None = None,
) -> tuple[Float32[Array, "b h n c"], Float32[Array, "b h n"]]:  # fmt: skip
    """S_t = a_t S_{t-1} + ω_t x_t and z_t = a_t z_{t-1} + ω_t, a_t = 1 where token t merges: S_t / z_t is its slot's content.

    `merges` may be chances, as in training. `before`: S and z of the token before the first; none is 0.

    Source: DMC, arXiv 2403.09636, equations 3 to 5. Differs: the release counts the last 12 tokens of a slot alone.
    """

    def joined(one, two):
        (a, s, z), (b, t, y) = one, two
        return a * b, b[..., None] * s + t, b * z + y

    a, s, z = lax.associative_scan(joined, (merges.astype(jnp.float32), w[..., None] * x, w), axis=2)
    if before is None:
        return s, z
    return s + a[..., None] * before[0][:, :, None], z + a * before[1][..., None]
