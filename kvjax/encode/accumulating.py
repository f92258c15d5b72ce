"""Slots that take in the tokens that follow them: a token gets a slot of its own, or is averaged into its head's last (DMC)."""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.codec import AsIs
from kvjax.encode.positions import PositionPolicy
from kvjax.encode.stored import Stored
from kvjax.evidence import Evidence, RawKeys
from kvjax.gates.decision_neurons import merge_weight, merges, query_neuron, running_sums, silent
from kvjax.protocols import Cache, Decoder, Rope
from kvjax.types import Keys


@struct.dataclass
class WithoutDecisions(PositionPolicy):
    """Keys and queries at their positions in the text, 0 for the neuron that decides, before the rotary embedding and after it."""

    needs = frozenset({RawKeys()})

    def of_prompt(self, k: Keys, evidence: Evidence) -> Keys:
        raw = evidence.of(RawKeys())
        return _placed(raw, jnp.arange(raw.shape[2], dtype=jnp.int32), evidence.rope)

    def inputs(self, inputs: AttentionInputs, positions: Int32[Array, "b t"], rope: Rope | None) -> AttentionInputs:
        q, k = _placed(inputs.q_raw, positions[:, None, None], rope), _placed(inputs.k_raw, positions[:, None], rope)
        return inputs.replace(q=q, k=k)


def _placed(x: Array, positions: Int32[Array, "*p"], rope: Rope | None) -> Array:
    return silent(rope.rotate(silent(x), *rope.cos_sin(positions)))


@struct.dataclass
class Accumulating(Stored):
    """Token t goes into its head's last slot where its key says so: k ← (k z + k_t ω_t) / (z + ω_t), v alike, z ← z + ω_t.

    It does before its query attends. A head takes a slot where it does not, so that heads grow apart. Sums are float32 of keys
    before the rotary embedding; the slot stands at the position of the last token in it. Known tokens are fed one at a time;
    nothing may be evicted while decoding. It goes on from what `kvjax.merge.RunningMean` has left of the prompt.

    Args:
        offset: of both neurons (`kvjax.gates.decision_neurons`).

    Raises (from `check`): ValueError for codes, or values elsewhere than on the device. Source: DMC, arXiv 2403.09636, section 3.1.
    """

    numbered: ClassVar[bool] = True
    reads_memory: ClassVar[frozenset[str]] = frozenset({"k", "v", "z"})
    positions: PositionPolicy = WithoutDecisions()
    offset: float = struct.field(pytree_node=False, default=5.0)

    @property
    def stepwise(self) -> bool:
        return True

    @property
    def movable(self) -> bool:
        return False

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if self.codecs != (AsIs(), AsIs()) or not self.placement.on_device or self.positions != WithoutDecisions():
            raise ValueError(f"slots are accumulated as they are, on the device and without their decisions; got {self!r}")

    def fits(self, cache: Cache, d: int) -> bool:
        return super().fits(cache, d) and isinstance(cache.memory, Mapping) and {*cache.memory} == self.reads_memory

    def append(self, cache: Cache, inputs: AttentionInputs, context: AttendContext, count: Int32[Array, " b"]) -> PyTree:
        if inputs.k.shape[2] != 1:
            raise ValueError(f"slots accumulate one token at a time; got {inputs.k.shape[2]}")
        layer, real, d = context.layer, (count > 0)[:, None], inputs.k.shape[-1]
        merging = real & merges(inputs.k_raw, self.offset)[..., 0]
        x = jnp.concatenate([silent(inputs.k_raw), inputs.v], -1).astype(jnp.float32)
        old = jax.tree.map(lambda x: x[layer], cache.memory)
        before = jnp.concatenate([old["k"], old["v"]], -1), old["z"]
        sums, z = running_sums(x, merge_weight(query_neuron(inputs.q_raw), self.offset), merging[..., None], before)
        k, v = self._rows(inputs, sums / z[..., None], merging, context)
        at = cache.start[layer] + cache.length[layer] - 1 - merging
        at = jnp.where(real, at, cache.slots)

        def put(pool, rows):
            return pool.at[at].set(rows.astype(pool.dtype), mode="drop")

        pos = jnp.broadcast_to(context.positions, at.shape)
        new = {"k": sums[:, :, 0, :d], "v": sums[:, :, 0, d:], "z": z[..., 0]}
        memory = jax.tree.map(lambda x, y, z: x.at[layer].set(jnp.where(_like(real, y), y, z)), cache.memory, new, old)
        length = cache.length.at[layer].add(-merging.astype(jnp.int32))
        return cache.replace(k=put(cache.k, k), v=put(cache.v, v), pos=put(cache.pos, pos), length=length, memory=memory)

    def _rows(self, inputs: AttentionInputs, mean: Float32[Array, "b h 1 c"], merging: Array, context: AttendContext):
        """The key and the value of each head's last slot after the step."""
        d = inputs.k.shape[-1]
        k = _placed(mean[..., :d], context.positions[:, None], context.rope)

        def alone(own, merged):
            return jnp.where(merging[..., None], merged, own)

        return alone(inputs.k[:, :, 0], k[:, :, 0]), alone(inputs.v[:, :, 0], mean[:, :, 0, d:])


def _like(mask: Array, x: Array) -> Array:
    """A mask [b 1] that broadcasts with x [b h ...]."""
    return mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))
