"""What goes is accumulated into the slot that stays behind it: a mean by learned weights (DMC)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PyTree

from kvjax.evidence import GateValues, Need, RawKeys
from kvjax.gates import QueryNeuron
from kvjax.gates.decision_neurons import merge_weight, running_sums, silent
from kvjax.stage import Merger
from kvjax.types import Mask, Scores
from kvjax.view import LayerView

#: What tokens weigh, but for the offset.
WEIGHS = GateValues.of(QueryNeuron(), {})


@struct.dataclass
class RunningMean(Merger):
    """A kept slot becomes the mean, by weight, of itself and of what went since the kept slot before it; what comes after the last
    kept slot is dropped.

    Keys are averaged before the rotary embedding, without the neuron that decides, and turned to the kept slot's position. Slots
    that nothing goes into keep their bits. Memory: of each head's last slot the sums of keys and values, and the sum of weights,
    which decoding goes on with (`kvjax.encode.Accumulating`); 8 d + 4 bytes a KV head.

    Args:
        offset: of the neuron that weighs (`kvjax.gates.decision_neurons.merge_weight`).

    Slots are in position order. Source: DMC, arXiv 2403.09636, section 3.1.
    """

    keeps: ClassVar[frozenset[str]] = frozenset({"k", "v", "z"})
    offset: float = struct.field(pytree_node=False, default=5.0)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({WEIGHS, RawKeys()})

    def __call__(self, view: LayerView, keep: Mask, scores: Scores, memory: PyTree) -> tuple[LayerView, dict[str, Array]]:
        del scores, memory
        d, rope = view.k.shape[-1], view.seen.rope
        merges = jnp.pad(view.valid[..., 1:] & ~keep[..., :-1], ((0, 0), (0, 0), (1, 0)))
        x = jnp.concatenate([silent(view.seen.of(RawKeys())), view.v], -1).astype(jnp.float32)
        sums, z = running_sums(x, merge_weight(view.seen.of(WEIGHS), self.offset), merges)
        mean = sums / z[..., None]
        k = silent(rope.rotate(mean[..., :d], *rope.cos_sin(view.pos)))

        def put(old, new):
            return jnp.where((keep & merges)[..., None], new.astype(old.dtype), old)

        last = jnp.where(keep, jnp.arange(keep.shape[-1]), -1).max(-1)
        newest = jnp.take_along_axis(sums, last[..., None, None], 2)[:, :, 0]
        left = {"k": newest[..., :d], "v": newest[..., d:], "z": jnp.take_along_axis(z, last[..., None], 2)[..., 0]}
        return view.replace(k=put(view.k, k), v=put(view.v, mean[..., d:])), left
