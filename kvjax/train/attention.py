"""Causal attention that can be reversed: every score of a layer at once, no loop whose length is data."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from kvjax.attention_inputs import AttentionInputs
from kvjax.types import Keys, Queries


def causal_attention(
    inputs: AttentionInputs, bias: Float32[Array, "#b #h #g #t #t"] | None = None, *, window: int | None = None
) -> Float[Array, "b h g t d"]:
    """out_i = Σ_j softmax_j(q_i·k_j / sqrt(d) + bias_ij) v_j over j <= i, and j > i - window where there is one; in float32.

    t² scores a query head are alive. A bias of -inf hides a key; a query must be left one.
    """
    a, v = causal_weights(inputs, bias, window=window), inputs.v.astype(jnp.float32)
    return jnp.einsum("bhgtn,bhnd->bhgtd", a, v, precision="highest").astype(inputs.q.dtype)


def causal_weights(
    inputs: AttentionInputs, bias: Float32[Array, "#b #h #g #t #t"] | None = None, *, window: int | None = None
) -> Float32[Array, "b h g t t"]:
    """a_ij = softmax_j(q_i·k_j / sqrt(d) + bias_ij), 0 where i does not see j; as `causal_attention` takes it."""
    z = logits(inputs.q, inputs.k)
    z = z if bias is None else z + bias
    i = jnp.arange(z.shape[3], dtype=jnp.int32)
    seen = i <= i[:, None] if window is None else (i <= i[:, None]) & (i > i[:, None] - window)
    return jax.nn.softmax(jnp.where(seen, z, -jnp.inf), axis=-1)


def logits(q: Queries, k: Keys) -> Float32[Array, "b h g t n"]:
    """q_i·k_j / sqrt(d), of later keys, too."""
    z = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), k.astype(jnp.float32), precision="highest")
    return z / jnp.sqrt(jnp.float32(q.shape[-1]))
