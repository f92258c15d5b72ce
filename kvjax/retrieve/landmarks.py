"""Keys in low rank on the device, values in host memory, chunks chosen by landmarks (ShadowKV)."""

import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.budget import check_budget, is_everything, slots_of
from kvjax.cache.counter import Counter
from kvjax.encoder import Encoder
from kvjax.evidence import Need, RawKeys
from kvjax.placement import OnDevice, OnHost
from kvjax.protocols import Cache, Decoder, Rope
from kvjax.ranges import Whole
from kvjax.retrieve.elsewhere import Elsewhere, Fetching, attend_rows, check_homes, check_whole, saved
from kvjax.retrieve.low_rank import Shadow, away_tokens, landmark_worth, rebuilt, shadow
from kvjax.retrieve.token_lists import top_tokens
from kvjax.retrieve.top_pages import together
from kvjax.stage import Retriever
from kvjax.types import Number, Queries


@struct.dataclass
class ShadowState(Fetching):
    """Attributes:
    shadows: factors and landmarks of each layer that has slots elsewhere, () for the others.
    wanted: chunks that a query reads of them.   most: as many as any row's, rounded up.   size: tokens of a chunk.
    """

    shadows: tuple[PyTree, ...] | None
    wanted: Int32[Array, " b"]
    most: int = struct.field(pytree_node=False)
    size: int = struct.field(pytree_node=False)

    @property
    def common(self) -> str:
        rank = next(s.sv.shape[2] for s in self.shadows if isinstance(s, Shadow))
        return f"{super().common}, chunks of {self.size} tokens, rank {rank}"

    @property
    def raw(self) -> PyTree:
        return super().raw, [(s.u, s.sv, s.landmarks) for s in self.shadows if isinstance(s, Shadow)]

    def split(self) -> tuple["ShadowState", PyTree]:
        return self.replace(away=None, shadows=None), (self.away, self.shadows)

    def joined(self, read: PyTree) -> "ShadowState":
        return self.replace(away=read[0], shadows=read[1])

    @staticmethod
    def stack(states: list) -> "ShadowState":
        return states[0].replace(
            away=Elsewhere.stack([s.away for s in states]),
            **{name: Counter.stack([getattr(s, name) for s in states]) for name in ("fetched", "moved")},
            shadows=tuple(_together(layers) for layers in zip(*(s.shadows for s in states), strict=True)),
            wanted=jnp.concatenate([s.wanted for s in states]),
            most=max(s.most for s in states),
        )


def _together(several: Sequence[PyTree]) -> PyTree:
    """One layer of several rows, tokens and chunks padded to the longest prompt."""
    if not all(isinstance(x, Shadow) for x in several):
        return ()
    n, m = (max(x.shape[axis] for x in arrays) for arrays, axis in (([s.u for s in several], 1), ([s.ids for s in several], 2)))

    def wide(x: Array, axis: int, to: int) -> Array:
        return jnp.pad(x, [(0, to - size if i == axis else 0) for i, size in enumerate(x.shape)])

    padded = [
        s.replace(u=wide(s.u, 1, n), landmarks=wide(s.landmarks, 2, m), ids=wide(s.ids, 2, m)) for s in several
    ]  # fmt: skip
    return jax.tree.map(lambda *x: jnp.concatenate(x), *padded)


@struct.dataclass
class Landmarks(Retriever):
    """Attention over {rebuilt chunks, outlier chunks, the last chunks, what came after the prompt}.

    A query reads the chunks of largest u = max_g softmax(q_g · landmark / sqrt(d)) for its KV head: values are fetched from `home`,
    keys are U[token] · SV_h, rotated at their positions. Outliers, the chunks whose keys agree least with their mean, and the last
    chunks are in the pool, as they are.

    Args:
        rank: of the factors of a layer's un-rotated keys, all KV heads side by side.
        tokens: what a query reads of the rest, in chunks: an int, or the share of the prompt as a float in (0, 1]; 1.0 all of it.
        chunk: tokens of a chunk.   outliers: chunks a KV head.   local: last whole chunks that stay as they are.
        home: of the values: OnHost(), ByCallback() or OnDevice().

    Layers with a sliding window keep everything. Needs the whole prompt: nothing may be evicted.
    Raises: ValueError for sizes out of range and for a budget that evicts.
    Source: ShadowKV, arXiv 2410.21465, algorithms 1 and 2. Differs: logits are divided by sqrt(d), where the release has sqrt(128)
    for every model; prompts of any length are treated alike.
    """

    state: ClassVar[type] = ShadowState
    stepwise: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    rank: int = struct.field(pytree_node=False, default=160)
    tokens: Number = 2048
    chunk: int = struct.field(pytree_node=False, default=8)
    outliers: Whole = struct.field(pytree_node=False, default=48)
    local: Whole = struct.field(pytree_node=False, default=4)
    home: OnDevice = OnHost()

    def __post_init__(self):
        check_budget(self.tokens)
        if min(self.rank, self.chunk) < 1 or min(self.outliers, self.local) < 0:
            raise ValueError(f"a rank and a chunk are at least 1, outliers and local chunks 0 or more; got {self!r}")

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({RawKeys()})

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if mean_budget < length:
            raise ValueError(f"Landmarks stand for a whole prompt: leave the budget at 1.0; got {mean_budget} of {length} tokens")

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]]:
        how, found = dict(size=self.chunk, local=self.local, many=self.outliers), []
        for row, d in zip(rows, decided, strict=True):
            layers = [away_tokens(k, row.length, **how) & (window is None) for k, window in zip(row.k, model.windows, strict=True)]
            found.append(d.keep & jnp.stack(layers))
        return found

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> ShadowState:
        check_homes("Landmarks", self.home, encode)
        check_whole("Landmarks", rows, decided)
        some = np.any([np.asarray(d.away.any((1, 2, 3))) for d in decided], 0)
        some = some | ~some.any()  # short prompts alone: as the layers of longer ones, which they may be stacked with
        lengths, most = [int(row.length[0]) for row in rows], max(row.k[0].shape[2] for row in rows) // self.chunk
        wanted = [most if is_everything(self.tokens) else max(1, slots_of(self.tokens, n) // self.chunk) for n in lengths]
        return ShadowState(
            away=saved(self.home, [d.away for d in decided], [[(v,) for v in row.v] for row in rows]),
            fetched=Counter.zeros(len(rows)),
            moved=Counter.zeros(len(rows)),
            shadows=tuple(_together([self._shadow(row, i) for row in rows]) if there else () for i, there in enumerate(some)),
            wanted=jnp.asarray(wanted, jnp.int32),
            most=max(1, min(-(-max(wanted) // 8) * 8, most)),
            size=self.chunk,
        )

    def _shadow(self, row: Number, layer: int) -> Shadow:
        k, k_raw = row.k[layer], row.evidence[layer].of(RawKeys())
        rank = min(self.rank, k.shape[1] * k.shape[3])
        return shadow(k, k_raw, row.length, size=self.chunk, local=self.local, many=self.outliers, rank=rank)

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(cache.retrieval, ShadowState) or cache.retrieval.size != self.chunk:
            raise ValueError("the cache has no landmarks of such chunks: compress it with this policy")

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        q, here = inputs.q, context.encode.attention(inputs.q, cache, context)
        state, mine = cache.retrieval, cache.retrieval.shadows[context.layer]
        if not isinstance(mine, Shadow):
            return *here, cache
        if q.shape[3] != 1:
            raise ValueError(f"Landmarks choose for one token at a time; got {q.shape[3]}")
        chosen, count = self._chosen(q, mine, state)
        token = jnp.arange(self.chunk, dtype=jnp.int32)
        slots = (chosen[..., None] * self.chunk + token).reshape(*chosen.shape[:2], -1)
        at = jnp.take_along_axis(mine.ids, chosen, -1)[..., None] * self.chunk + token
        k = self._keys(mine, at.reshape(slots.shape), context.rope)
        there = attend_rows(q, k, state.away.take(0, context.layer, slots), count * self.chunk)
        asked = self.chunk * count.sum(-1, dtype=jnp.int32)
        return *together(there, here), cache.replace(retrieval=state.took(slots, asked, context.real))

    def _chosen(self, q: Queries, mine: Shadow, state: ShadowState) -> tuple[Int32[Array, "b h k"], Int32[Array, "b h"]]:
        """Which landmarks each KV head reads, ascending, and how many."""
        u = landmark_worth(q[:, :, :, 0], mine.landmarks, mine.count, 1 / math.sqrt(q.shape[-1]))
        real = jnp.arange(u.shape[-1]) < mine.count[..., None]
        return top_tokens(u, real, jnp.broadcast_to(state.wanted[:, None], mine.count.shape), most=state.most)

    def _keys(self, mine: Shadow, at: Int32[Array, "b h k"], rope: Rope | None) -> Float[Array, "b h k d"]:
        """Keys of tokens at these positions, rotated."""
        return rope.rotate(rebuilt(mine.u, mine.sv, at), *rope.cos_sin(at))
