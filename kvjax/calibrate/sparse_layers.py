"""One exact layer after another, each with what sparse attentions would have made of its queries."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from kvjax.attention_inputs import AttentionInputs
from kvjax.checks import check_prompts
from kvjax.kernels.prefill_attention import prefill_attention
from kvjax.prefill.minference import MInference
from kvjax.prefill.run import shape_of
from kvjax.prefill.sparse_attention import computed_tiles
from kvjax.protocols import LanguageModel
from kvjax.types import Queries


class Compared(NamedTuple):
    """A sparse attention against the exact one on a layer's own inputs, by query head [q].

    Attributes:
        mass: mean share of a query's attention that the pattern holds, exp(lse_sparse - lse_exact).
        error: ‖out_sparse - out_exact‖ / ‖out_exact‖ over all counted tokens.
        share: tiles computed over tiles under the diagonal.
    """

    mass: Float32[Array, " q"]
    error: Float32[Array, " q"]
    share: Float32[Array, " q"]


def compared_layers(lm: LanguageModel, ids: list[int], attentions: list[MInference], *, first: int = 0) -> Iterator[list[Compared]]:
    """Layer by layer: for each attention what `Compared` says of it, counting queries from `first` on.

    The prompt is run whole, and goes on with exact attention.
    """
    (ids,) = check_prompts(ids, lm.decoder)
    for attention in attentions:
        attention.check(lm.decoder, None)
    tokens = np.zeros((1, -(-len(ids) // 64) * 64), np.int32)
    tokens[0, : len(ids)] = ids
    x, count = lm.decoder.embed(lm.params, jnp.asarray(tokens)), jnp.asarray([len(ids)], jnp.int32)
    counted = jnp.asarray([min(first, len(ids) - 1)], jnp.int32)
    shape = shape_of(lm.decoder, tokens.shape[1], x.dtype)
    for layer, weights in enumerate(lm.params["layers"]):
        sizes = [attention.begin(shape, layer) for attention in attentions]
        x, found = _layer(weights, x, count, counted, sizes, decoder=lm.decoder, attentions=tuple(attentions))
        yield found


@partial(jax.jit, static_argnames=("decoder", "attentions"))
def _layer(weights, x, count, first, sizes, *, decoder, attentions):
    positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None]

    def attend(inputs: AttentionInputs):
        out, lse = prefill_attention(inputs.q, inputs.k, inputs.v, offset=0)
        counted = (positions >= first) & (positions < count)
        pairs = zip(attentions, sizes, strict=True)
        return out, [_compared(attention, own, inputs, out, lse, counted, count) for attention, own in pairs]

    return decoder.layer(weights, x, positions, attend)


def _compared(
    attention: MInference, sizes: Int32[Array, "h g 5"], inputs: AttentionInputs, exact: Queries, lse: Array, counted: Array,
    count: Int32[Array, " b"],
) -> Compared:  # fmt: skip
    """One attention on one layer's inputs."""
    ids, offset = jnp.zeros(counted.shape, jnp.int32), jnp.int32(0)
    out, block, _ = attention.attend_after(
        sizes, inputs, inputs.k, inputs.v, ids=ids, offset=offset, count=count, window=None, rope=None
    )
    real = counted[:, None, None]

    def norm(y):
        return jnp.sqrt(jnp.where(real[..., None], jnp.square(y.astype(jnp.float32)), 0.0).sum((3, 4)))

    mass = jnp.where(real, jnp.exp(block.lse - lse), 0.0).sum(3) / counted.sum()
    tiles, under = computed_tiles(block.index, offset, count)
    values = mass, norm(out - exact) / norm(exact), tiles / under
    return Compared(*(value.reshape(-1).astype(jnp.float32) for value in values))
