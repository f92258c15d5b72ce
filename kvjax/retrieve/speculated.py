"""Which tokens a layer will look at, guessed from the input of the layer before it, and fetched (InfiniGen)."""

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.budget import check_budget, slots_of
from kvjax.cache.counter import Counter
from kvjax.encoder import Encoder
from kvjax.evidence import Need, SkewedQueries
from kvjax.evidence.skewed_queries import turned
from kvjax.placement import OnDevice, OnHost
from kvjax.protocols import Cache, Decoder
from kvjax.ranges import Whole
from kvjax.retrieve.elsewhere import Elsewhere, Fetching, attend_rows, check_homes, check_whole, once_begun, rows_together, saved
from kvjax.retrieve.token_lists import as_list, best
from kvjax.retrieve.top_pages import together
from kvjax.stage import Retriever
from kvjax.types import Keys, Layer, Number, Queries, Table, later_table, size_class


@struct.dataclass
class PartialKeys:
    """Of one layer. Axis letters: c columns.

    Attributes:
        keys: k A[:, C] of the prompt's tokens.   basis: A[:, C] of each row and KV head, C its columns.
    """

    keys: Float[Array, "b h n c"]
    basis: Float[Array, "b h d c"]


@partial(jax.jit, static_argnames=("many",))
def partial_keys(k: Keys, weight: Float32[Array, "b h d"], skew: Float[Array, "h d d"] | None, *, many: int) -> PartialKeys:
    """The `many` columns of largest weight, ascending; equal ones by lower index."""
    columns = jnp.sort(jax.lax.top_k(weight, many)[1], -1)
    eye = jnp.eye(k.shape[-1], dtype=jnp.float32)
    matrix = jnp.broadcast_to(eye if skew is None else skew, (k.shape[0], k.shape[1], *eye.shape)).astype(jnp.float32)
    basis = jnp.take_along_axis(matrix, columns[:, :, None], -1)
    return PartialKeys(
        keys=jnp.take_along_axis(turned(k, skew), columns[:, :, None], -1).astype(k.dtype), basis=basis.astype(k.dtype)
    )


def guessed(q: Float[Array, "b h g d"], mine: PartialKeys) -> Float32[Array, "b h n"]:
    """ẑ = max_g (q_g A[:, C]) · (k A[:, C]) / sqrt(d)."""
    q, keys, basis = (x.astype(jnp.float32) for x in (q, mine.keys, mine.basis))
    part = jnp.einsum("bhgd,bhdc->bhgc", q, basis, precision="highest")
    return jnp.einsum("bhgc,bhnc->bhgn", part, keys, precision="highest").max(2) / math.sqrt(q.shape[-1])


def fetch_count(
    z: Float32[Array, "b h n"], valid: Bool[Array, "b n"], alpha: Number, most: Int32[Array, " b"]
) -> Int32[Array, " b"]:
    """int(mean_h |{j: ẑ_hj > max_j ẑ_hj - α}|), no more than `most`: one number for all KV heads."""
    z = jnp.where(valid[:, None], z, -jnp.inf)
    near = (z > z.max(-1, keepdims=True) - alpha).sum(-1, dtype=jnp.int32)
    return jnp.minimum(near.sum(-1) // z.shape[1], most)


@struct.dataclass
class SpeculatedState(Fetching):
    """Attributes:
    partial: of each layer that has slots elsewhere, () for the others.
    prompt: tokens of each prompt.   cap: most that are fetched for a KV head.   most: the size of a list.
    """

    partial: tuple[PyTree, ...] | None
    prompt: Int32[Array, " b"]
    cap: Int32[Array, " b"]
    most: int = struct.field(pytree_node=False)

    @property
    def common(self) -> str:
        return f"{super().common}, columns {[x.basis.shape[-1] if isinstance(x, PartialKeys) else 0 for x in self.partial]}"

    @property
    def raw(self) -> PyTree:
        return super().raw, self.partial

    def split(self) -> tuple["SpeculatedState", PyTree]:
        return self.replace(away=None, partial=None), (self.away, self.partial)

    def joined(self, read: PyTree) -> "SpeculatedState":
        return self.replace(away=read[0], partial=read[1])

    @staticmethod
    def stack(states: list) -> "SpeculatedState":
        bare = [s.replace(away=None, partial=None, most=0) for s in states]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *bare).replace(
            away=Elsewhere.stack([s.away for s in states]),
            partial=tuple(_together(layers) for layers in zip(*(s.partial for s in states), strict=True)),
            most=max(s.most for s in states),
        )


@struct.dataclass
class Guess:
    """What a layer hands on to the next.

    Attributes:
        x: its input, normed.   slots, count: what it expects the layer `layer` to look at; None where it does not say.
    """

    x: Float[Array, "b t e"]
    slots: Int32[Array, "b h m"] | None = None
    count: Int32[Array, "b h"] | None = None
    layer: int = struct.field(pytree_node=False, default=-1)


def _together(several: Sequence[PartialKeys | tuple[()]]) -> PyTree:
    """One layer of several rows."""
    if not isinstance(several[0], PartialKeys):
        return ()
    return PartialKeys(keys=rows_together([x.keys for x in several]), basis=jnp.concatenate([x.basis for x in several]))


@struct.dataclass
class Speculated(Retriever):
    """Attention over the tokens of the prompt that x_{l-1}, the input of the layer before, makes one expect, and all later ones.

    q̂ = rope(x_{l-1} W_q^l), ẑ_j = max_g (q̂_g A[:, C]) · (k_j A[:, C]) / sqrt(d); every KV head fetches its own best, as many as
    come within α of the maximum in the mean over KV heads.

    *Timing.* Layer l - 1 makes the guess for layer l before its own attention, and has the rows read: with `ByCallback` by a thread
    of the host, while the device computes what is left of layer l - 1, and layer l as far as its attention over the pool. Only then
    are they waited for. Where layers share a cache, the second reader of one guesses as it reads.

    Args:
        skew: float [L, H, d, d], orthogonal, A of each KV head from `kvjax.calibrate.skew`; None leaves columns as they are.
        part: |C| / d, the columns of largest Σ|q A| of the prompt.
        alpha: α, in logits as softmax takes them.
        cap: most tokens fetched for a KV head, an int, or the share of the prompt as a float in (0, 1].
        skip_layers: first layers that read everything, at least 1: the large channels that make a good guess come up in layer 0.
        home: of the prompt's keys and values: OnHost(), ByCallback() or OnDevice().
        origin: which model and text the skew came from.

    The first layers and those with a sliding window keep everything in the pool. Needs the whole prompt: nothing may be evicted.
    Raises: ValueError for a skew of another model, a part out of range, no first layer, a budget that evicts.
    Source: InfiniGen, arXiv 2406.19707, section 4. Differs: KV heads of several query heads take the maximum over them; what was
    generated stays on the device and is always read.
    """

    state: ClassVar[type] = SpeculatedState
    stepwise: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    skew: Table = later_table()
    part: float = struct.field(pytree_node=False, default=0.2)
    alpha: Number = 4.0
    cap: Number = 0.2
    skip_layers: Whole = struct.field(pytree_node=False, default=2)
    home: OnDevice = OnHost()
    origin: str = struct.field(pytree_node=False, default="")

    def __post_init__(self):
        check_budget(self.cap)
        if not 0 < self.part <= 1:
            raise ValueError(f"part is a share of a head's columns, in (0, 1]; got {self.part}")
        if self.skip_layers < 1:
            raise ValueError(f"no layer comes before the first to guess for it: skip_layers is at least 1; got {self.skip_layers}")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({SkewedQueries(self.skew, self.origin)})

    def at(self, layer: Layer) -> "Speculated":
        return self if self.skew is None else self.replace(skew=jnp.asarray(self.skew)[layer])

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        wanted = model.layers, model.heads, model.head_dim, model.head_dim
        if self.skew is not None and np.shape(self.skew) != wanted:
            raise ValueError(f"Speculated wants a skew [layers, KV heads, d, d] = {list(wanted)}; got {list(np.shape(self.skew))}")
        if int(model.head_dim * self.part) < 1:
            raise ValueError(f"part={self.part} leaves none of {model.head_dim} columns: take at least {1 / model.head_dim}")
        if mean_budget < length:
            raise ValueError(f"Speculated fetches of a whole prompt: leave the budget at 1.0; got {mean_budget} of {length} tokens")

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]]:
        some = jnp.array([i >= self.skip_layers and window is None for i, window in enumerate(model.windows)])
        return [d.keep & some[:, None, None, None] for d in decided]

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> SpeculatedState:
        check_homes("Speculated", self.home, encode)
        check_whole("Speculated", rows, decided)
        some, lengths = np.asarray(decided[0].away.any((1, 2, 3))), [int(row.length[0]) for row in rows]
        cap = [min(slots_of(self.cap, n), n) for n in lengths]
        return SpeculatedState(
            away=saved(self.home, [d.away for d in decided], [list(zip(row.k, row.v, strict=True)) for row in rows]),
            fetched=Counter.zeros(len(rows)),
            moved=Counter.zeros(len(rows)),
            partial=tuple(_together([self._partial(row, i) for row in rows]) if there else () for i, there in enumerate(some)),
            prompt=jnp.asarray(lengths, jnp.int32),
            cap=jnp.asarray(cap, jnp.int32),
            most=size_class(max(cap)),
        )

    def _partial(self, row: Number, layer: int) -> PartialKeys:
        weight = row.evidence[layer].of(SkewedQueries(self.skew, self.origin))
        return partial_keys(row.k[layer], weight, self.at(layer).skew, many=int(row.k[layer].shape[-1] * self.part))

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(cache.retrieval, SpeculatedState):
            raise ValueError("the cache has no partial keys of its prompt: compress it with this policy")

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        state, layer, before = cache.retrieval, context.layer, cache.passed
        cache, begun = self._ahead(inputs, cache, context)
        q, mine = once_begun(begun, inputs.q), state.partial[layer]
        here = context.encode.attention(q, cache, context)
        if not isinstance(mine, PartialKeys):
            return *here, cache
        if q.shape[3] != 1:
            raise ValueError(f"Speculated guesses for one token at a time; got {q.shape[3]}")
        ready = isinstance(before, Guess) and before.layer == layer
        slots, count = (before.slots, before.count) if ready else self._guess(inputs.queries_of(before.x), mine, state, context)
        k, v = (state.away.take(kind, layer, slots, after=here) for kind in (0, 1))
        there = attend_rows(q, k, v, count)
        return *together(there, here), cache.replace(retrieval=state.took(slots, count.sum(-1, dtype=jnp.int32), context.real))

    def _ahead(self, inputs: AttentionInputs, cache: Cache, context: AttendContext) -> tuple[Cache, Int32[Array, ""]]:
        """The guess for the next layer, in `cache.passed`, and a number that is there once its reading has begun."""
        state, after, guess = cache.retrieval, context.layer + 1, Guess(x=inputs.x)
        theirs = state.partial[after] if after < len(state.partial) else ()
        if not isinstance(theirs, PartialKeys) or context.queries_ahead is None or inputs.q.shape[3] != 1:
            return cache.replace(passed=guess), jnp.int32(0)
        slots, count = self._guess(context.queries_ahead(inputs.x), theirs, state, context)
        return cache.replace(passed=Guess(inputs.x, slots, count, after)), state.away.begin(after, slots)

    def _guess(self, q: Queries, theirs: PartialKeys, state: SpeculatedState, context: AttendContext):
        """What each KV head fetches for queries before their rotation, ascending, and how many."""
        cos, sin = context.rope.cos_sin(context.positions)
        q = context.rope.rotate(q, cos[:, None, None], sin[:, None, None])
        z = guessed(q[..., 0, :], theirs)
        valid = jnp.arange(z.shape[-1]) < state.prompt[:, None]
        count = fetch_count(z, valid, self.alpha, state.cap)
        wide = jnp.broadcast_to(valid[:, None], z.shape)
        return as_list(best(z, wide, jnp.broadcast_to(count[:, None], z.shape[:2])), state.most)
