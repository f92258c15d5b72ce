"""What was recorded of tokens, in the slots these tokens got."""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from kvjax.view import LayerView


def per_slot(view: LayerView, before: Shaped[Array, "b h n *x"], new: Shaped[Array, "b #h t *x"]) -> Shaped[Array, "b h n *x"]:
    """new[i] in the slot of the i-th token just seen, `before` in the slots of older ones.

    Of a prompt token i stands at position i, of a step at position `view.since` + i. A row may have seen fewer than t tokens, or
    none; slots may be in any order.

    Args:
        before: the state by slot.   new: one entry a token, [b h t ...]; [b 1 t ...] for the same in every head.
    """
    first = jnp.zeros_like(view.length) if view.since is None else view.since
    token = view.pos - first[:, None, None]
    fresh = view.valid & (token >= 0) & (token < new.shape[2])

    def widen(x):
        return x.reshape(*x.shape, *(1,) * (before.ndim - 3))

    new = jnp.broadcast_to(new, (*before.shape[:2], *new.shape[2:]))
    there = jnp.take_along_axis(new, widen(jnp.clip(token, 0, new.shape[2] - 1)), axis=2)
    return jnp.where(widen(fresh), there.astype(before.dtype), before)
