"""Yes or no, with a derivative: decisions of gates while they are trained."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32


def straight_through(p: Float[Array, "*s"], threshold: float = 0.5) -> Float32[Array, "*s"]:
    """[p > threshold] going forward, the derivative of p on the way back."""
    p = p.astype(jnp.float32)
    hard = (p > threshold).astype(jnp.float32)
    return hard + (p - jax.lax.stop_gradient(p))


def noisy_logit(key: Array, logit: Float[Array, "*s"], temperature: Float[Array, ""] | float) -> Float32[Array, "*s"]:
    """(l + G1 - G2) / τ, G1 and G2 from the standard Gumbel distribution."""
    one, two = (jax.random.gumbel(k, logit.shape, jnp.float32) for k in jax.random.split(key))
    return (logit.astype(jnp.float32) + one - two) / temperature


def gumbel_sigmoid(key: Array, logit: Float[Array, "*s"], temperature: Float[Array, ""] | float) -> Float32[Array, "*s"]:
    """σ((l + G1 - G2) / τ): a draw that is almost 0 or 1, with a derivative."""
    return jax.nn.sigmoid(noisy_logit(key, logit, temperature))


def gumbel_top_k(key: Array, scores: Float[Array, "*s n"], k: int) -> Int32[Array, "*s k"]:
    """k of n drawn without replacement, likelier the higher their scores: the top k of s + G, in the order they are drawn."""
    noisy = scores.astype(jnp.float32) + jax.random.gumbel(key, scores.shape, jnp.float32)
    return jax.lax.top_k(noisy, k)[1].astype(jnp.int32)


def draw_log_probability(scores: Float[Array, "*s n"], order: Int32[Array, "*s k"]) -> Float32[Array, "*s"]:
    """log p(order) = Σ_j (s_σj - log Σ_{i not yet drawn} exp s_i) of `gumbel_top_k` (Plackett, Luce)."""
    s, k = scores.astype(jnp.float32), order.shape[-1]
    drawn: Bool[Array, "*s k n"] = jax.nn.one_hot(order, s.shape[-1], dtype=jnp.int32).cumsum(-2) > 0
    before = jnp.concatenate([jnp.zeros_like(drawn[..., :1, :]), drawn[..., : k - 1, :]], -2)
    left = jax.nn.logsumexp(jnp.where(before, -jnp.inf, s[..., None, :]), axis=-1)
    return (jnp.take_along_axis(s, order, -1) - left).sum(-1)
