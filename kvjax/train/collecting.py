"""Blocks of a prompt that a model forgets, while it learns which (Neural Garbage Collection): scores, masks, rollouts.

*Neural Garbage Collection: Learning to Forget while Learning to Reason*, arXiv 2604.18002.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.attention_inputs import AttentionInputs
from kvjax.train.decisions import gumbel_top_k
from kvjax.train.forward import Attend, Hook

#: A block that no query looks at has the logarithm of this.
LEAST = 1e-20


def block_scores(inputs: AttentionInputs, *, first: int, window: int, size: int) -> Float32[Array, "b m"]:
    """s_j = log mean over block j's tokens, all heads and the last `window` queries before `first` of the layer's attention.

    Args:
        first: tokens that are judged, m · size of them.
    """
    q, k = (x.astype(jnp.float32) for x in (inputs.q[..., first - window : first, :], inputs.k[:, :, :first]))
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, k, precision="highest") / jnp.sqrt(jnp.float32(q.shape[-1]))
    at = first - window + jnp.arange(window)
    a = jax.nn.softmax(jnp.where(jnp.arange(first) <= at[:, None], z, -jnp.inf), axis=-1).mean((1, 2, 3))
    return jnp.log(a.reshape(a.shape[0], -1, size).mean(-1) + LEAST)


def forgotten(keep: Bool[Array, "b m"], *, first: int, size: int, length: int) -> Float32[Array, "b 1 1 t t"]:
    """A bias of -inf where a query from `first` on looks at a token of a block that is not kept, 0 elsewhere."""
    held = jnp.pad(jnp.repeat(keep, size, axis=1), ((0, 0), (0, length - first)), constant_values=True)
    late = jnp.arange(length)[:, None] >= first
    return jnp.where(late & ~held[:, None], -jnp.inf, 0.0)[:, None, None].astype(jnp.float32)


def collecting(*, first: int, window: int, size: int) -> Hook:
    """A hook whose queries from `first` on see the kept blocks alone; it gives back the layer's `block_scores`.

    The weights of a layer are its kept blocks, bool [b, m]: what was drawn once is what is seen again.
    """

    def hook(layer: int, keep: Array, inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "..."], Array]:
        del layer
        bias = forgotten(keep, first=first, size=size, length=inputs.q.shape[3])
        return attend(inputs, bias), block_scores(inputs, first=first, window=window, size=size)

    return hook


def draw_blocks(key: Array, scores: Float32[Array, "l b m"], k: int) -> tuple[Int32[Array, "l b k"], Bool[Array, "l b m"]]:
    """(k blocks of every layer and row in the order they are drawn, which of all they are): see `gumbel_top_k`."""
    order = gumbel_top_k(key, scores, k)
    return order, best(order, scores.shape[-1])


def best(order: Int32[Array, "*s k"], blocks: int) -> Bool[Array, "*s m"]:
    """Which of the blocks an order names."""
    return jax.nn.one_hot(order, blocks, dtype=jnp.int32).sum(-2) > 0


def generate(
    logits_of: Callable[[Array, Array], Array], key: Array, tokens: Int32[Array, "b t"], mine: Bool[Array, "b t"], *,
    first: int, temperature: float
) -> Int32[Array, "b t"]:  # fmt: skip
    """The tokens with those that are the model's own, from `first` on, drawn one after the other from softmax(logits / τ).

    Args:
        logits_of: (tokens, i) → logits [b v] of the token behind i.   mine: what is drawn; all else is given.
        temperature: τ; 0 takes the likeliest.
    """

    def draw(at: Array, tokens: Array) -> Array:
        z = logits_of(tokens, at - 1)
        noise = jax.random.gumbel(jax.random.fold_in(key, at), z.shape, jnp.float32)
        return tokens.at[:, at].set(jnp.where(mine[:, at], (z + temperature * noise).argmax(-1), tokens[:, at]))

    def step(at: Array, tokens: Array) -> Array:
        return lax.cond(mine[:, at].any(), draw, lambda at, tokens: tokens, at, tokens)

    return lax.fori_loop(first, tokens.shape[1], step, tokens)


def advantages(reward: Float32[Array, "p r"]) -> Float32[Array, "p r"]:
    """A_i = r_i - mean r over the rollouts of a prompt; nothing is divided by their spread."""
    return reward - reward.mean(-1, keepdims=True)
