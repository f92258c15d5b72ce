"""Which rotary positions keys and queries have: those of the text, or of the cache.

What happens when: `of_prompt` says which of a prompt's keys are kept, `packed` turns those that stay, once, when they are packed;
`inputs` says which of a step's queries and keys are stored and attended with. A policy `at_reading` stores keys un-rotated and
turns keys and queries at every reading, `product`. Scorers that read keys see them at their true positions, `seen`, whatever is
stored: the queries they are given are rotated there, too. Mergers blend keys as they are stored: un-rotated ones `at_reading`.
"""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence import Evidence, Need, RawKeys
from kvjax.order import places
from kvjax.protocols import Rope
from kvjax.ranges import Size
from kvjax.types import Keys, Mask, Positions, Queries


class PositionPolicy:
    """What position policies share; by itself the keys as the model rotated them.

    Attributes:
        at_reading: whether keys are stored un-rotated.   turns: whether `packed` changes keys.
        ranked: whether a reading must see all slots that a head holds to tell where one of them stands.
        query: the field of `AttentionInputs` that attention reads.
        needs: the evidence of the prompt it reads.
    """

    at_reading: ClassVar[bool] = False
    turns: ClassVar[bool] = False
    ranked: ClassVar[bool] = False
    query: ClassVar[str] = "q"
    needs: ClassVar[frozenset[Need]] = frozenset()

    def longest(self, text: int, slots: int) -> int:
        """Positions the rotary embedding must serve for a text of so many tokens, of which a head holds so many slots."""
        del slots
        return text

    def of_prompt(self, k: Keys, evidence: Evidence) -> Keys:
        """A layer's prompt keys, from the rotated ones and what the layer recorded."""
        del evidence
        return k

    def packed(self, k: Keys, keep: Mask, length: Int32[Array, " b"], rope: Rope | None) -> Keys:
        """The same keys at the positions that those kept have from now on."""
        del keep, length, rope
        return k

    def inputs(self, inputs: AttentionInputs, positions: Int32[Array, "b t"], rope: Rope | None) -> AttentionInputs:
        """A step's inputs with the queries that attend, and the keys that are stored, as `q` and `k`; its tokens at `positions`."""
        del positions, rope
        return inputs

    def seen(self, k: Keys, pos: Positions, rope: Rope | None) -> Keys:
        """Stored keys rotated at their true positions."""
        del pos, rope
        return k


@struct.dataclass
class Absolute(PositionPolicy):
    """Keys are rotated once, at their positions in the text."""


@struct.dataclass
class Rerotated(PositionPolicy):
    """Kept keys of the prompt are turned once, to consecutive positions; decoding goes on from there.

    k_j ← R(n - m + rank_j - pos_j) k_j for the m kept of n tokens: positions n - m .. n - 1, so that the next query, at n, stands
    right behind them. Only differences count: that is positions 0 .. m - 1 with the next query at m, head by head.

    What is evicted while decoding leaves a gap. A sliding window still counts positions of the text, as does the model's context.
    Source: FINCH, arXiv 2408.00167, section 3.2. Differs: ragged heads, each with its own m.
    """

    turns: ClassVar[bool] = True

    def packed(self, k: Keys, keep: Mask, length: Int32[Array, " b"], rope: Rope | None) -> Keys:
        rank = jnp.cumsum(keep, -1, dtype=jnp.int32) - 1
        shift = length[:, None, None] - keep.sum(-1, dtype=jnp.int32)[..., None]
        return turned(k, shift + rank - jnp.arange(k.shape[2], dtype=jnp.int32), rope)


class AtReading(PositionPolicy):
    """Keys are stored un-rotated: what `InCache` and `Clamped` share. They say where slots and queries stand, `places`."""

    at_reading: ClassVar[bool] = True
    query: ClassVar[str] = "q_raw"
    needs: ClassVar[frozenset[Need]] = frozenset({RawKeys()})

    def of_prompt(self, k: Keys, evidence: Evidence) -> Keys:
        return evidence.of(RawKeys())

    def inputs(self, inputs: AttentionInputs, positions: Int32[Array, "b t"], rope: Rope | None) -> AttentionInputs:
        return inputs.replace(q=inputs.q_raw, k=inputs.k_raw)

    def seen(self, k: Keys, pos: Positions, rope: Rope | None) -> Keys:
        return rope.rotate(k, *rope.cos_sin(pos))

    def places(self, pos: Positions, held: Mask, now: Int32[Array, "b t"]) -> tuple[Int32[Array, "b h n"], Int32[Array, "b h t"]]:
        """Positions of the slots, and of the queries, in a layer."""
        raise NotImplementedError(f"{type(self).__name__} must define places(pos, held, now)")

    def product(
        self, q: Queries, k: Keys, at: Int32[Array, "b h n"], now: Int32[Array, "b h t"], rope: Rope | None
    ) -> Float32[Array, "b h g t n"]:
        """q·k of un-rotated queries at `now` and keys at `at`."""
        return dot(rotated_queries(q, now, rope), self.rotated(k, at, rope))

    def rotated(self, k: Keys, at: Int32[Array, "b h n"], rope: Rope | None) -> Keys:
        """Un-rotated keys turned to where slots stand, `at`."""
        return rope.rotate(k, *rope.cos_sin(at))


@struct.dataclass
class InCache(AtReading):
    """Positions are ranks: the slots of a head count as if nothing else had ever been in the text.

    A key's position is its rank among the slots its head holds, in the order of the text; a query's is the number of slots before
    it. A text may be longer than the model's context. A sliding window counts ranks.
    Source: StreamingLLM, arXiv 2309.17453, section 3.2.
    """

    ranked: ClassVar[bool] = True

    def longest(self, text: int, slots: int) -> int:
        return min(text, slots)

    def places(self, pos: Positions, held: Mask, now: Int32[Array, "b t"]) -> tuple[Int32[Array, "b h n"], Int32[Array, "b h t"]]:
        return ranks(pos, held), (held[:, :, None] & (pos[:, :, None] < now[:, None, :, None])).sum(-1, dtype=jnp.int32)

    def rotated(self, k: Keys, at: Int32[Array, "b h n"], rope: Rope | None) -> Keys:
        """No rank exceeds the slots there are: sines and cosines of each are computed once, and looked up."""
        angles = rope.cos_sin(jnp.arange(k.shape[2], dtype=jnp.int32))
        return rope.rotate(k, *(jnp.take(x, at, axis=0, mode="clip") for x in angles))


@struct.dataclass
class Unrotated(AtReading):
    """Keys are stored un-rotated and turned to their positions in the text at every reading.

    Nothing changes but what is stored: for codecs that take keys before the rotary embedding.
    """

    def places(self, pos: Positions, held: Mask, now: Int32[Array, "b t"]) -> tuple[Int32[Array, "b h n"], Int32[Array, "b h t"]]:
        del held
        return pos, jnp.broadcast_to(now[:, None], (*pos.shape[:2], now.shape[1]))


@struct.dataclass
class Clamped(AtReading):
    """No key stands farther from a query than `limit`: q·R(-min(distance, limit)) k.

    Args:
        limit: the distance that far keys all have.

    Source: InfLLM, arXiv 2402.04617, section 3.1; ReRoPE has the same rule. Differs: while decoding alone; the prompt is read
    at its own positions.
    """

    limit: Size = struct.field(pytree_node=False, default=4096)

    def longest(self, text: int, slots: int) -> int:
        del slots
        return min(text, self.limit + 1)

    places = Unrotated.places

    def product(
        self, q: Queries, k: Keys, at: Int32[Array, "b h n"], now: Int32[Array, "b h t"], rope: Rope | None
    ) -> Float32[Array, "b h g t n"]:
        near = super().product(q, k, at, now, rope)
        far = super().product(q, k, jnp.zeros_like(at), jnp.full_like(now, self.limit), rope)
        return jnp.where((now[..., None] - at[:, :, None] > self.limit)[:, :, None], far, near)


def ranks(pos: Positions, held: Mask) -> Int32[Array, "b h n"]:
    """How many held slots of the same head have a lower position; slots that are not held come last."""
    return places(jnp.argsort(jnp.where(held, pos, jnp.iinfo(jnp.int32).max), -1))


def turned(k: Keys, by: Int32[Array, "b h n"], rope: Rope | None) -> Keys:
    """Rotated keys, each turned on by so many positions; an attention factor of the embedding is in them already."""
    cos, sin = rope.cos_sin(by)
    return rope.rotate(k, cos / rope.factor, sin / rope.factor)


def rotated_queries(q: Queries, now: Int32[Array, "b h t"], rope: Rope | None) -> Queries:
    """Queries rotated at positions that differ by KV head."""
    return rope.rotate(q, *rope.cos_sin(now[:, :, None]))


def dot(q: Queries, k: Keys) -> Float32[Array, "b h g t n"]:
    """q·k in float32."""
    return jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), k.astype(jnp.float32), precision="highest")


def visible(at: Int32[Array, "b h n"], now: Int32[Array, "b h t"], held: Mask, window: int | None) -> Bool[Array, "b h t n"]:
    """Slots each query sees: held, not after it, and within its sliding window."""
    at, now = at[:, :, None], now[..., None]
    seen = held[:, :, None] & (at <= now)
    return seen if window is None else seen & (at > now - window)
