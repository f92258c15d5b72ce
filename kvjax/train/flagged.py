"""Tokens that a gate flags as worth keeping, all others hidden from what comes after them, while it is learned (Attention-Gate)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.gate import Gate, read
from kvjax.train.forward import Attend, Hook

#: Probabilities [b h t] → flags of 0 or 1, with a derivative.
Decide = Callable[[Array], Array]


def flag_penalty(flags: Float32[Array, "b h t"], *, sinks: int, floor: float) -> Float32[Array, "b h 1 t t"]:
    """bias_ij = ln(floor + (1 - floor) f_j) where i is not j, 0 of the first `sinks`: nothing is taken from what is kept.

    The floor is what gives a hidden token a derivative: its weight in a softmax is f_j e^(z_j) + floor · (1 - f_j) e^(z_j).

    Source: Attention-Gate, arXiv 2410.12876, section 3.2. Differs: the paper hides flagged tokens altogether.
    """
    t = flags.shape[-1]
    kept = jnp.where(jnp.arange(t) < sinks, 1.0, flags)
    bias = jnp.log(1 - (1 - floor) * (1 - kept))
    return jnp.where(jnp.eye(t, dtype=bool), 0.0, bias[:, :, None])[:, :, None]


def flagging(gate: Gate, decide: Decide, *, sinks: int, floor: float) -> Hook:
    """A hook whose attention leaves out what the gate does not flag; it gives back (p, flags) [b h t] of the layer."""

    def hook(
        layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend
    ) -> tuple[Float[Array, "..."], tuple[Array, Array]]:
        del layer
        p = jax.nn.sigmoid(read(gate, weights, inputs))
        flags = decide(p)
        return attend(inputs, flag_penalty(flags, sinks=sinks, floor=floor)), (p, flags)

    return hook
