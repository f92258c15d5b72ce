"""Each query reads the first tokens, its local window, and the blocks between whose representatives match it best (InfLLM)."""

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.cache.retriever_state import RetrieverState
from kvjax.encode.positions import Clamped
from kvjax.encoder import Encoder
from kvjax.evidence import LocalMass, Need, RawKeys
from kvjax.far_blocks import FarSizes, best_blocks, part, relevance, representatives
from kvjax.join import Part, joined
from kvjax.protocols import Cache
from kvjax.stage import Retriever
from kvjax.types import Number, Queries


@struct.dataclass
class FarKeys(RetrieverState):
    """Representatives of the prompt's blocks, [b h g m d] a layer; blocks [b] says how many each row has.

    `fewest` is the least of those; `cut` has the first tokens, tokens of a block and keys of a representative that they are of.
    """

    keys: tuple[Float32[Array, "b h g m d"], ...]
    blocks: Int32[Array, " b"]
    fewest: int = struct.field(pytree_node=False)
    cut: tuple[int, int, int] = struct.field(pytree_node=False)

    @property
    def common(self) -> str:
        return f"(first tokens, tokens of a block, keys of a representative) = {self.cut}"

    def split(self) -> tuple["FarKeys", PyTree]:
        return self.replace(keys=()), self.keys

    def joined(self, read: PyTree) -> "FarKeys":
        return self.replace(keys=read)

    @staticmethod
    def stack(states: list) -> "FarKeys":
        return _stacked(states)


@struct.dataclass
class FarBlocks(Retriever):
    """Attention over {initial, chosen blocks, remainder} and the local window, far keys all at the distance `sizes.local`.

    A block is chosen for all heads of a layer at once: the `sizes.top` of the largest Σ over heads of q · mean of its
    representatives, q turned to the far distance. Prompt tokens become blocks as decoding leaves them behind.

    Layers with a sliding window read it as it is. Needs keys stored un-rotated (`Stored(positions=Clamped(sizes.local))`) and every
    slot of the prompt.
    Raises: ValueError for other positions, for exact windows and codes of several slots, for heads that do not hold the whole
    prompt, for a policy that evicts while decoding.
    Source: InfLLM, arXiv 2402.04617, section 3. Differs: decoded tokens are read one by one and fill no blocks; mass is counted to
    the end of the prompt; there is no cache of fetched blocks: where values live is `Stored(placement=...)`.
    """

    state: ClassVar[type] = FarKeys
    stepwise: ClassVar[bool] = True
    padded: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    still: ClassVar[bool] = True
    sizes: FarSizes = struct.field(pytree_node=False, default=FarSizes())

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({LocalMass(self.sizes.local), RawKeys()})

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> FarKeys:
        self._check(encode)
        lengths = [int(row.length[0]) for row in rows]
        if any((np.asarray(d.count) != n).any() for d, n in zip(decided, lengths, strict=True)):
            raise ValueError("FarBlocks reads blocks of the whole prompt: keep all of it (budget=1.0)")
        blocks = [self.sizes.blocks(n) for n in lengths]
        states = [self._of_row(row, m) for row, m in zip(rows, blocks, strict=True)]
        return states[0] if len(states) == 1 else _stacked(states)

    def _of_row(self, row: Number, m: int) -> FarKeys:
        def kept(e):
            return representatives(e.of(LocalMass(self.sizes.local)), e.of(RawKeys()), self.sizes, m)

        keys = tuple(kept(e) for e in row.evidence) if m else tuple(_none(e.of(LocalMass(self.sizes.local)), k) for e, k in
                                                                    zip(row.evidence, row.k, strict=True))  # fmt: skip
        return FarKeys(keys=keys, blocks=jnp.asarray([m], jnp.int32), fewest=m, cut=self._cut)

    @property
    def _cut(self) -> tuple[int, int, int]:
        """What blocks and their representatives depend on."""
        return self.sizes.initial, self.sizes.block, self.sizes.representatives

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(state := cache.retrieval, FarKeys):
            raise ValueError("the cache has no representatives of its blocks: compress it with this policy")
        if state.cut != self._cut:
            raise ValueError(
                f"the cache has (first tokens, tokens of a block, keys of a representative) = {state.cut}, the policy {self._cut}: "
                "compress it with this policy"
            )

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        self._check(context.encode)
        if context.window is not None:
            return *context.encode.attention(inputs.q, cache, context), cache
        if inputs.q.shape[3] != 1:
            raise ValueError(f"FarBlocks chooses for one token at a time; got {inputs.q.shape[3]}")
        state, now = cache.retrieval, context.positions[:, 0]
        left = jnp.minimum(self.sizes.left(now), state.blocks)
        parts = [self._rest(inputs.q, cache, context, left)]
        if state.keys[0].shape[3]:
            parts.append(self._chosen(inputs.q, cache, context, left))
        if self.sizes.initial:
            first = jnp.broadcast_to(jnp.arange(self.sizes.initial, dtype=jnp.int32), (len(now), self.sizes.initial))
            parts.append(_over(inputs.q, cache, context, first, first < cache.length[context.layer][:, :1]))
        out, lse = joined(parts)
        return out.astype(inputs.q.dtype), lse, cache

    def _chosen(self, q: Queries, cache: Cache, context: AttendContext, left: Int32[Array, " b"]) -> Part:
        """The blocks that match."""
        turned = context.rope.rotate(q, *context.rope.cos_sin(jnp.int32(self.sizes.local)))[:, :, :, 0].astype(jnp.float32)
        chosen, found = best_blocks(relevance(turned, cache.retrieval.keys[context.layer]), left, self.sizes.top)
        return _over(q, cache, context, self.sizes.slots(chosen), jnp.repeat(found, self.sizes.block, axis=1))

    def _rest(self, q: Queries, cache: Cache, context: AttendContext, left: Int32[Array, " b"]) -> Part:
        """The slots behind the last block that has been left: the remainder and the local window."""
        s, layer = self.sizes, context.layer
        behind = jnp.minimum((s.initial + left * s.block)[:, None], cache.length[layer])
        narrow = cache.replace(start=cache.start.at[layer].add(behind), length=cache.length.at[layer].add(-behind))
        after = context.padded_slots - s.initial - cache.retrieval.fewest * s.block
        most = min(context.padded_slots, max(s.local + 2 * s.block, after))
        return context.encode.attention(q, narrow, context.replace(padded_slots=most))

    def _check(self, encode: Encoder) -> None:
        if encode.positions != Clamped(self.sizes.local):
            raise ValueError(f"FarBlocks needs Stored(positions=Clamped({self.sizes.local})); got {encode.positions!r}")
        if encode.stepwise or encode.page > 1:
            raise ValueError(
                "FarBlocks reads regions from some slot on and slots one by one, which an exact window and codes of several slots "
                f"do not allow: use codecs of single slots and no window; got {encode!r}"
            )


def _over(q: Queries, cache: Cache, context: AttendContext, places: Int32[Array, "b n"], real: Array) -> Part:
    """Attention over some places of every region, the same for all heads."""
    layer = context.layer
    slots = cache.start[layer][..., None] + places[:, None]
    k, v = context.encode.take(cache, layer, slots, q.dtype)
    at = jnp.take(cache.pos, slots, mode="clip").astype(jnp.int32)
    now = jnp.broadcast_to(context.positions[:, None], (*slots.shape[:2], 1))
    z = context.encode.positions.product(q, k, at, now, context.rope) / math.sqrt(q.shape[-1])
    return part(z, real[:, None, None, None], v)


def _none(received: Array, k: Array) -> Array:
    """No representatives."""
    return jnp.zeros((*received.shape[:3], 0, k.shape[-1]), jnp.float32)


def _stacked(states: list[FarKeys]) -> FarKeys:
    """Several rows as one batch."""
    most = max(state.keys[0].shape[3] for state in states)

    def wide(x):
        return jnp.pad(x, ((0, 0),) * 3 + ((0, most - x.shape[3]), (0, 0)))

    keys = tuple(jnp.concatenate([wide(x) for x in of_layer]) for of_layer in zip(*(s.keys for s in states), strict=True))
    blocks = jnp.concatenate([state.blocks for state in states])
    return FarKeys(keys=keys, blocks=blocks, fewest=min(state.fewest for state in states), cut=states[0].cut)
