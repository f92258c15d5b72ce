"""Losses between two passes over the same tokens, one number a token; `masked_mean` makes them one number.

Those of logits go `by_blocks`, so that the logits of a few tokens alone are alive.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32


def masked_mean(x: Float[Array, "*s"], mask: Bool[Array, "*s"]) -> Float32[Array, ""]:
    """Σ x m / Σ m in float32; 0 where the mask is empty. What is masked may be anything, NaN too."""
    mine = jnp.where(mask, x.astype(jnp.float32), 0.0)
    return mine.sum() / jnp.maximum(mask.sum(), 1)


def positive_mean(x: Float[Array, "*s"], mask: Bool[Array, "..."] | bool = True) -> Float32[Array, ""]:
    """The mean of those numbers of the mask that are above 0; 0 where none is."""
    return masked_mean(x, (x > 0) & mask)


def forward_kl(teacher: Float[Array, "*s v"], student: Float[Array, "*s v"]) -> Float32[Array, "*s"]:
    """KL(p ‖ q) = Σ_v p (log p - log q), p of the teacher's logits, q of the student's."""
    p, q = (jax.nn.log_softmax(z.astype(jnp.float32)) for z in (teacher, student))
    return (jnp.exp(p) * (p - q)).sum(-1)


def reverse_kl(teacher: Float[Array, "*s v"], student: Float[Array, "*s v"]) -> Float32[Array, "*s"]:
    """KL(q ‖ p) = Σ_v q (log q - log p), p of the teacher's logits, q of the student's."""
    return forward_kl(student, teacher)


def cross_entropy(logits: Float[Array, "*s v"], target: Int32[Array, "*s"]) -> Float32[Array, "*s"]:
    """-log softmax(logits)[target]."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_p, target[..., None], -1)[..., 0]


def hidden_error(teacher: Float[Array, "*s e"], student: Float[Array, "*s e"]) -> Float32[Array, "*s"]:
    """mean_e (h - h')², h the final hidden states.

    Source: DuoAttention, arXiv 2410.10819, section 2.2.
    """
    return jnp.square(teacher.astype(jnp.float32) - student.astype(jnp.float32)).mean(-1)
