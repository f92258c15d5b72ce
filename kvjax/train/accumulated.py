"""Tokens that are averaged into the slot before them, while a model learns which (DMC): soft decisions, sums and a fading mask."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.decision_neurons import merge_weight, query_neuron, running_sums
from kvjax.protocols import Rope
from kvjax.train.delayed import delayed_penalty
from kvjax.train.forward import Attend, Hook

#: What decides: (layer, k[d - 1] - offset of each token [b h t]) → logits ℓ; σ(ℓ) is how much of a token is merged.
Decide = Callable[[int, Array], Array]
#: A logit of which nothing is left: σ is 0, and so is its derivative.
NEVER = -1e9


def dimmed(x: Float[Array, "*a d"], share: Float32[Array, ""]) -> Float[Array, "*a d"]:
    """x with `share` of its last coordinate, that of the neuron: 1 leaves it alone, 0 is `silent`."""
    return x.at[..., -1].multiply(share.astype(x.dtype))


def accumulating(rope: Rope, decide: Decide, *, offset: float, share: Float32[Array, ""]) -> Hook:
    """A hook in which token t's slot holds S_t / z_t, and is hidden from later tokens by ln(1 - a_(t+1)); it gives back ℓ [b h t].

    a = σ(ℓ), S_t = a_t S_(t-1) + ω_t x_t and z_t = a_t z_(t-1) + ω_t of keys before the rotary embedding, and of values. The first
    token opens a slot. With hard decisions this is how `kvjax.prefill.MergedAttention` reads.

    Args:
        decide: noise and temperature, or hard decisions.   offset: of the neurons (`kvjax.gates.decision_neurons`).
        share: how much of the neurons' coordinates attention still reads.

    Source: DMC, arXiv 2403.09636, section 3.2. Differs: the release counts the last 12 tokens of a slot alone.
    """

    def hook(layer: int, weights: object, inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "..."], Array]:
        del weights
        d, t = inputs.k.shape[-1], inputs.k.shape[2]
        cos, sin = rope.cos_sin(jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32), (inputs.k.shape[0], t)))

        def placed(x, *at):
            return dimmed(rope.rotate(x, cos[at], sin[at]), share)

        logit = decide(layer, inputs.k_raw[..., -1].astype(jnp.float32) - offset).at[..., 0].set(NEVER)
        a = jax.nn.sigmoid(logit)
        x = jnp.concatenate([dimmed(inputs.k_raw, share), inputs.v], -1).astype(jnp.float32)
        sums, z = running_sums(x, merge_weight(query_neuron(inputs.q_raw), offset), a)
        held = jnp.where((a > 0)[..., None], sums / z[..., None], x).astype(inputs.k.dtype)
        q, k = placed(dimmed(inputs.q_raw, share), slice(None), None, None), placed(held[..., :d], slice(None), None)
        return attend(inputs.replace(q=q, k=k, v=held[..., d:]), delayed_penalty(logit, 0)), logit

    return hook
