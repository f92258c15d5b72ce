"""What one row of a batch leaves in one layer: merged, turned to where its keys are to stand, ordered, and ready for its codecs."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.cache.kv_cache import SlotState
from kvjax.codec import Codec
from kvjax.compress.decision import Decision
from kvjax.compress.merged import merged
from kvjax.encode.positions import PositionPolicy
from kvjax.encode.tail import filled
from kvjax.encode.window import Window
from kvjax.evidence import Evidence
from kvjax.kernels.compact import host
from kvjax.policy import Policy
from kvjax.prefill.prefilled import PrefilledRow
from kvjax.protocols import Decoder
from kvjax.types import Indices, Keys


class Side(NamedTuple):
    """Keys, or values, of all slots of a prompt, with what stores those that stay.

    Attributes:
        x: [b, h, n, d].   codec: how they are coded.   fitted: what the codec was fitted to.
        window: which of the newest stay exact beside the codes; None where none do.
    """

    x: Keys
    codec: Codec
    window: Window | None
    fitted: PyTree


class LayerRows(NamedTuple):
    """What one row leaves in one layer.

    Attributes:
        k, v: keys and values.   pos: positions [b, h, n].   state: what stages keep by slot.
        order: the slots that stay, in the order of positions [b, h, n].   count: how many of each head [b, h].
        memory: what the merger keeps of the row.
    """

    k: Side
    v: Side
    pos: Indices
    state: SlotState
    order: Indices
    count: Indices
    memory: PyTree

    def tails(self, sinks: int) -> tuple[PyTree, PyTree]:
        """Of keys and of values: the slots that stay exact beside coded ones, and how many are coded; () where none do."""
        return tuple(
            () if side.window is None else _tail(side.window, side.x, self.order, self.count, sinks) for side in (self.k, self.v)
        )


def layer_rows(row: PrefilledRow, decision: Decision, policy: Policy, decoder: Decoder, layer: int, *, of_model: int) -> LayerRows:
    """What a prefilled row leaves in a layer.

    Args:
        layer: among the layers prefilled.   of_model: the same layer's place in the model.
    """
    encode, positions, evidence = policy.encode.at(of_model), policy.encode.positions, row.evidence[layer]
    k = positions.of_prompt(row.k[layer], evidence)
    view, memory = merged(policy.merge.at(of_model), k, row, decision, layer, positions)
    turned = _turned(positions, view.k, decision.in_all, row.length, rope=decoder.rope, layer=np.int32(layer))
    sides = [
        Side(x=x, codec=codec, window=window, fitted=_fitted(codec, x, decision, layer, evidence))
        for x, codec, window in zip((turned, view.v), encode.codecs, encode.windows, strict=True)
    ]
    pos, order, count = _order(decision.keep, row.pos, layer)
    state = SlotState(score=view.scored if policy.when.decoding else (), merge=view.state, bias=view.bias)
    return LayerRows(*sides, pos=pos, state=state, order=order, count=count, memory=memory)


def _turned(positions: PositionPolicy, k: Keys, keep: Bool[Array, "l b h n"], length: Int32[Array, " b"], *, rope, layer) -> Keys:
    """Keys where `positions` wants those that stay; nothing is computed where that is where they are."""
    return _keys_of(positions, k, keep, length, rope=rope, layer=layer) if positions.turns else k


@partial(jax.jit, static_argnames="rope")
def _keys_of(positions, k, keep, length, *, rope, layer):
    return positions.packed(k, keep[layer], length, rope)


def _fitted(codec: Codec, x: Keys, decision: Decision, layer: int, evidence: Evidence) -> PyTree:
    """What a codec is fitted to on the slots of a layer that stay; nothing is computed where it is never fitted."""
    return _fit(codec, x, decision.fitted_on, decision.in_all, np.int32(layer), evidence) if codec.fitted else ()


@jax.jit
def _fit(codec, x, keep, stays, layer, evidence):
    return codec.fit_to(x, keep[layer], stays[layer], evidence)


def _order(keep: Bool[Array, "l b h n"], pos: Int32[Array, "b n"] | None, layer: int) -> tuple[Indices, Indices, Indices]:
    """A layer's positions [b, h, n]; its kept slots in position order [b, h, n]; how many of each head [b, h]."""
    if not host.reaches([keep, pos]):
        return _ordered(keep, pos, np.int32(layer))
    keep = np.asarray(keep)[layer]
    pos = np.arange(keep.shape[-1], dtype=np.int32) if pos is None else np.asarray(pos)[:, None]
    return np.broadcast_to(pos, keep.shape), *host.kept_first(keep)


@jax.jit
def _ordered(keep, pos, layer):
    """The same where JAX has them."""
    keep = keep[layer]
    ranks = jnp.cumsum(keep, -1, dtype=jnp.int32)
    wanted = jnp.arange(1, keep.shape[-1] + 1, dtype=jnp.int32)
    find = jax.vmap(jax.vmap(partial(jnp.searchsorted, side="left"), (0, None)), (0, None))
    pos = jnp.broadcast_to(wanted - 1 if pos is None else pos[:, None], keep.shape)
    return pos, jnp.minimum(find(ranks, wanted), keep.shape[-1] - 1).astype(jnp.int32), ranks[..., -1]


@partial(jax.jit, static_argnames=("sinks",))
def _tail(window, x, order, count, sinks):
    return filled(x, order, count, window, sinks), window.coded(count)
