"""Attention to what a small cache holds, joined with what it has absorbed of the rest, while the maps are learned (LESS)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.side_maps import key_features, query_features
from kvjax.train.attention import causal_attention, logits
from kvjax.train.forward import Attend, Hook
from kvjax.train.heavy_hitters import held_by_heavy_hitters

#: Where the logarithm of a product of features ends.
_LEAST = 1e-30


def absorbing_attention(
    inputs: AttentionInputs, seen: Bool[Array, "b h t t"], weights: PyTree
) -> Float32[Array, "b h g t d"]:  # fmt: skip
    """(Σ_seen e^(z_j) v_j + Σ_gone φ(q)·ψ(k_j) v_j) / (Σ_seen e^(z_j) + Σ_gone φ(q)·ψ(k_j)), j <= i.

    A softmax whose logits are z_j of what is seen and ln φ(q)·ψ(k_j) of what is gone.

    Args:
        seen: which keys each query still sees.   weights: maps of one layer (`kvjax.gates.side_maps`).

    Source: LESS, arXiv 2402.09398, section 3.
    """
    phi, psi = query_features(inputs.q, weights["q"]), key_features(inputs.k, weights["k"])
    mass = jnp.einsum("bhgtr,bhnr->bhgtn", phi, psi, precision="highest")
    z = jnp.where(seen[:, :, None], logits(inputs.q, inputs.k), jnp.log(jnp.maximum(mass, _LEAST)))
    t = z.shape[-1]
    a = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), z, -jnp.inf), axis=-1)
    return jnp.einsum("bhgtn,bhnd->bhgtd", a, inputs.v.astype(jnp.float32), precision="highest")


def output_error(
    inputs: AttentionInputs, one: Float[Array, "b h g t d"], two: Float[Array, "b h g t d"]
) -> Float32[Array, "b t"]:  # fmt: skip
    """mean_e (Σ_hgd (one - two) W_o)²: how far apart a layer's attention ends."""
    apart = one.astype(jnp.float32) - two.astype(jnp.float32)
    return jnp.square(jnp.einsum("bhgtd,ehgd->bte", apart, inputs.w_o.astype(jnp.float32), precision="highest")).mean(-1)


def absorbing(slots: int, recent: int) -> Hook:
    """A hook that leaves attention as it is and gives back (error with what is absorbed, error without) [b t] of the layer."""

    def hook(layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend) -> tuple[Array, tuple[Array, Array]]:
        del layer
        full = attend(inputs)
        seen = held_by_heavy_hitters(logits(inputs.q, inputs.k), slots=slots, recent=recent)
        alone = causal_attention(inputs, jnp.where(seen, 0.0, -jnp.inf)[:, :, None])
        errors = (output_error(inputs, out, full) for out in (absorbing_attention(inputs, seen, weights), alone))
        return full, tuple(errors)

    return hook
