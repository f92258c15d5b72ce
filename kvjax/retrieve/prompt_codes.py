"""Codes of a prompt's keys on the device choose the tokens that are fetched from host memory, exact (PQCache)."""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.budget import check_budget, slots_of
from kvjax.cache.counter import Counter
from kvjax.encoder import Encoder
from kvjax.placement import OnDevice, OnHost
from kvjax.protocols import Cache, Decoder
from kvjax.ranges import Size, Whole
from kvjax.retrieve.elsewhere import Elsewhere, Fetching, attend_rows, check_homes, check_whole, rows_together, saved
from kvjax.retrieve.fitted_codebooks import CodedKeys, coded_keys, expected_scores, group_worth
from kvjax.retrieve.token_lists import top_tokens
from kvjax.retrieve.top_pages import together
from kvjax.stage import Retriever
from kvjax.types import Number, Queries, size_class


@struct.dataclass
class CodesState(Fetching):
    """Attributes:
    coded: codes and codebooks of each layer that has slots elsewhere, () for the others.
    held: tokens of each prompt that are elsewhere.   wanted: how many of them a query reads.   most: the size of a list.
    """

    coded: tuple[PyTree, ...] | None
    held: Int32[Array, " b"]
    wanted: Int32[Array, " b"]
    most: int = struct.field(pytree_node=False)

    @property
    def common(self) -> str:
        groups, centroids = next(x.book.shape[2:4] for x in self.coded if isinstance(x, CodedKeys))
        return f"{super().common}, {groups} groups of {centroids} centroids"

    @property
    def raw(self) -> PyTree:
        return super().raw, [x.book for x in self.coded if isinstance(x, CodedKeys)]

    def split(self) -> tuple["CodesState", PyTree]:
        return self.replace(away=None, coded=None), (self.away, self.coded)

    def joined(self, read: PyTree) -> "CodesState":
        return self.replace(away=read[0], coded=read[1])

    @staticmethod
    def stack(states: list) -> "CodesState":
        bare = [s.replace(away=None, coded=None, most=0) for s in states]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *bare).replace(
            away=Elsewhere.stack([s.away for s in states]),
            coded=tuple(_together(layers) for layers in zip(*(s.coded for s in states), strict=True)),
            most=max(s.most for s in states),
        )


def _together(several: Sequence[PyTree]) -> PyTree:
    """One layer of several rows; () where one of them has none elsewhere."""
    if not all(isinstance(x, CodedKeys) for x in several):
        return ()
    return CodedKeys(codes=rows_together([x.codes for x in several]), book=jnp.concatenate([x.book for x in several]))


@struct.dataclass
class PromptCodes(Retriever):
    """Attention over {sinks, topk_j(u_j, k) of the tokens between, the last tokens of the prompt, what came after it}.

    u_j = Σ_g softmax_j(q_g · k̂_j / sqrt(d)): k̂ are the keys by their codes, which codebooks fitted to this prompt give. A KV head
    has one list for its query heads; keys and values of it are fetched as they were.

    Args:
        tokens: k, an int, or the share of the prompt behind the sinks as a float in (0, 1].
        local: last tokens of the prompt that stay on the device, likewise.   sinks: first tokens that do.
        groups: of contiguous channels, one code each.   bits: of a code, at most 8: 2^bits centroids for every group.
        steps: of k-means, at most.   seed: of the tokens it starts from, int or int32 [].
        home: of the other tokens' keys and values: OnHost(), ByCallback() or OnDevice().

    Codes take a byte each. Layers with a sliding window keep everything. Needs the whole prompt: nothing may be evicted.
    Raises: ValueError for numbers out of range, groups that do not divide the head dimension, and a budget that evicts.
    Source: PQCache, arXiv 2407.12820, section 3. Differs: generated tokens stay on the device and are always read, where the
    release codes the last tokens one by one as new ones come; blocks that were fetched are not kept for the next step.
    """

    state: ClassVar[type] = CodesState
    stepwise: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    tokens: Number = 0.05
    local: Number = 0.05
    sinks: Whole = struct.field(pytree_node=False, default=32)
    groups: Size = struct.field(pytree_node=False, default=2)
    bits: int = struct.field(pytree_node=False, default=6)
    steps: Size = struct.field(pytree_node=False, default=25)
    seed: Number = 0
    home: OnDevice = OnHost()

    def __post_init__(self):
        check_budget(self.tokens)
        check_budget(self.local)
        if not 1 <= self.bits <= 8:
            raise ValueError(f"a code has 1 to 8 bits; got {self!r}")

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if model.head_dim % self.groups:
            raise ValueError(f"{self.groups} groups do not divide the head dimension {model.head_dim}: choose a divisor of it")
        if mean_budget < length:
            raise ValueError(f"PromptCodes chooses among a whole prompt: leave the budget at 1.0; got {mean_budget} of {length}")

    def between(self, length: int) -> int:
        """How many tokens of a prompt are neither sinks nor among the last."""
        behind = length - self.sinks
        return max(0, behind - slots_of(self.local, behind)) if behind > 0 else 0

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]]:
        every, found = jnp.array([window is None for window in model.windows]), []
        for row, d in zip(rows, decided, strict=True):
            at = jnp.arange(d.keep.shape[-1]) - self.sinks
            found.append(d.keep & (at >= 0) & (at < self.between(int(row.length[0]))) & every[:, None, None, None])
        return found

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> CodesState:
        check_homes("PromptCodes", self.home, encode)
        check_whole("PromptCodes", rows, decided)
        some = np.any([np.asarray(d.away.any((1, 2, 3))) for d in decided], 0)
        some = some | ~some.any()  # short prompts alone: as the layers of longer ones, which they may be stacked with
        lengths = [int(row.length[0]) for row in rows]
        held = [self.between(n) for n in lengths]
        wanted = [min(slots_of(self.tokens, max(1, n - self.sinks)), m) for n, m in zip(lengths, held, strict=True)]
        return CodesState(
            away=saved(self.home, [d.away for d in decided], [list(zip(row.k, row.v, strict=True)) for row in rows]),
            fetched=Counter.zeros(len(rows)),
            moved=Counter.zeros(len(rows)),
            coded=tuple(_together([self._coded(row, i) for row in rows]) if there else () for i, there in enumerate(some)),
            held=jnp.asarray(held, jnp.int32),
            wanted=jnp.asarray(wanted, jnp.int32),
            most=size_class(max(wanted)),
        )

    def _coded(self, row: Number, layer: int) -> CodedKeys:
        how = dict(groups=self.groups, centroids=1 << self.bits, steps=self.steps, seed=self.seed)
        length, k = int(row.length[0]), row.k[layer][:, :, self.sinks :]
        size = size_class(length - self.sinks)
        k = jnp.pad(k, ((0, 0), (0, 0), (0, max(0, size - k.shape[2])), (0, 0)))[:, :, :size]
        return coded_keys(k, jnp.int32(length - self.sinks), slots=min(size, size_class(self.between(length))), **how)

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(cache.retrieval, CodesState):
            raise ValueError("the cache has no codes of its prompt: compress it with this policy")

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        q, here = inputs.q, context.encode.attention(inputs.q, cache, context)
        state, mine = cache.retrieval, cache.retrieval.coded[context.layer]
        if not isinstance(mine, CodedKeys) or context.window is not None:
            return *here, cache
        if q.shape[3] != 1:
            raise ValueError(f"PromptCodes choose for one token at a time; got {q.shape[3]}")
        slots, count = self._chosen(q, mine, state)
        k, v = (state.away.take(kind, context.layer, slots) for kind in (0, 1))
        there = attend_rows(q, k, v, count)
        cache = cache.replace(retrieval=state.took(slots, count.sum(-1, dtype=jnp.int32), context.real))
        return *together(there, here), cache

    def _chosen(self, q: Queries, mine: CodedKeys, state: CodesState) -> tuple[Int32[Array, "b h m"], Int32[Array, "b h"]]:
        """Which tokens each KV head reads, ascending, and how many."""
        z = expected_scores(q[..., 0, :], mine, state.held)
        real = jnp.arange(z.shape[-1]) < state.held[:, None]
        wide = jnp.broadcast_to(real[:, None], (*z.shape[:2], z.shape[-1]))
        wanted = jnp.broadcast_to(state.wanted[:, None], z.shape[:2])
        return top_tokens(group_worth(z, real), wide, wanted, most=state.most)
