"""Learned tokens behind a prompt, differentiable: what they look at, and what the answer that they stand for looked at."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.soft_tokens import SoftTokens
from kvjax.protocols import Decoder
from kvjax.train.attention import causal_weights
from kvjax.train.forward import Attend, Hook
from kvjax.train.frozen import Frozen
from kvjax.types import Keys, Values

#: A layer's keys and values [b h t d], and what the answer pays each token [b h g t].
Read = tuple[Array, Array, Array]


def labelling(answer: Bool[Array, "b t"], windows: tuple[int | None, ...]) -> Hook:
    """A hook that leaves attention as it is and gives back keys, values and the mean attention of the answer's queries.

    Source: LookaheadKV, arXiv 2603.10899, section 3: the label, for every query head.
    """

    def hook(layer: int, weights: tuple[()], inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "..."], Read]:
        del weights
        a = jnp.where(answer[:, None, None, :, None], causal_weights(inputs, window=windows[layer]), 0.0)
        count = jnp.maximum(answer.sum(-1), 1)[:, None, None, None]
        return attend(inputs), (inputs.k, inputs.v, a.sum(3) / count)

    return hook


def soft_attention(
    inputs: AttentionInputs, k: Keys, v: Values, length: Int32[Array, " b"], *, window: int | None
) -> tuple[Float[Array, "b h g p d"], Float32[Array, "b h g n"]]:
    """(attention of learned tokens at positions length, length + 1, ... , what they pay each of the n keys given, their mean).

    They see the first `length` keys and, causally, each other.
    """
    n, p = k.shape[2], inputs.q.shape[3]
    q, keys = inputs.q.astype(jnp.float32), jnp.concatenate([k, inputs.k], 2).astype(jnp.float32)
    z = jnp.einsum("bhgtd,bhnd->bhgtn", q, keys, precision="highest") / jnp.sqrt(jnp.float32(q.shape[-1]))
    own = length[:, None] + jnp.arange(p, dtype=jnp.int32)
    at = jnp.concatenate([jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (len(length), n)), own], 1)
    real = jnp.concatenate([at[:, :n] < length[:, None], jnp.ones((len(length), p), bool)], 1)
    seen = real[:, None] & (at[:, None] <= own[:, :, None])
    seen = seen if window is None else seen & (at[:, None] > own[:, :, None] - window)
    a = jax.nn.softmax(jnp.where(seen[:, None, None], z, -jnp.inf), axis=-1)
    values = jnp.concatenate([v, inputs.v], 2).astype(jnp.float32)
    out = jnp.einsum("bhgtn,bhnd->bhgtd", a, values, precision="highest")
    return out.astype(inputs.q.dtype), a[..., :n].mean(3)


def soft_rows(
    frozen: Frozen, soft: SoftTokens, read: list[Read], length: Int32[Array, " b"]
) -> Float32[Array, "b l h g n"]:
    """What learned tokens behind prompts pay each token of them, layer by layer; differentiable in the tokens and their updates.

    Args:
        soft: the tokens, updates of all layers.   read: of the hook `labelling`, whatever stands behind the prompts.
        length: of each prompt.
    """
    embedded = soft.tokens.astype(frozen.params["embed"]["weight"].dtype)
    x, found = jnp.broadcast_to(embedded, (len(length), *embedded.shape)), []
    for layer, (weights, (k, v, _)) in enumerate(zip(frozen.params["layers"], read, strict=True)):
        run = jax.checkpoint(partial(_layer, decoder=frozen.decoder, window=frozen.decoder.windows[layer]))
        x, paid = run(soft.at(layer).read_by(weights), x, k, v, length)
        found.append(paid)
    return jnp.stack(found, axis=1)


def _layer(
    weights: dict, x: Float[Array, "b p e"], k: Keys, v: Values, length: Int32[Array, " b"], *, decoder: Decoder,
    window: int | None,
) -> tuple[Float[Array, "b p e"], Float32[Array, "b h g n"]]:  # fmt: skip
    positions = length[:, None] + jnp.arange(x.shape[1], dtype=jnp.int32)
    return decoder.layer(weights, x, positions, lambda inputs: soft_attention(inputs, k, v, length, window=window))
