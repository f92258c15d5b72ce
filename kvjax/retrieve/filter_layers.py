"""A few layers choose the tokens that the layers behind them read (OmniKV)."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.budget import check_budget, slots_of
from kvjax.cache.counter import Counter
from kvjax.encoder import Encoder
from kvjax.placement import OnDevice, OnHost
from kvjax.protocols import Cache, Decoder
from kvjax.ranges import Whole
from kvjax.retrieve.elsewhere import Elsewhere, Fetching, attend_rows, check_homes, check_whole, saved
from kvjax.retrieve.token_lists import top_tokens
from kvjax.retrieve.top_pages import together
from kvjax.stage import Retriever
from kvjax.types import Function, Number, size_class


@struct.dataclass
class RawLogits:
    """u_j = max_h q_h·k_j: the logits of all query heads as they are, which is the released default."""

    def __call__(self, z: Float32[Array, "b h g n"]) -> Float32[Array, "b n"]:
        return z.max((1, 2))


@struct.dataclass
class Probabilities:
    """u_j = max_h softmax(q_h·k)_j over the prompt: every head has the same say."""

    def __call__(self, z: Float32[Array, "b h g n"]) -> Float32[Array, "b n"]:
        return jax.nn.softmax(z, -1).max((1, 2))


@struct.dataclass
class FilterState(Fetching):
    """Attributes:
    prompt: tokens of each prompt.   wanted: how many of them are chosen.   most: the size of a list, no less than any.
    filters, waiting: of the retriever that was compressed with: they say whose slots are elsewhere.
    """

    prompt: Int32[Array, " b"]
    wanted: Int32[Array, " b"]
    most: int = struct.field(pytree_node=False)
    filters: tuple[int, ...] = struct.field(pytree_node=False)
    waiting: int = struct.field(pytree_node=False)

    @property
    def common(self) -> str:
        return f"{super().common}, filters {self.filters}, {self.waiting} waiting"

    @staticmethod
    def stack(states: list) -> "FilterState":
        away, bare = Elsewhere.stack([s.away for s in states]), [s.replace(away=None, most=0) for s in states]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *bare).replace(away=away, most=max(s.most for s in states))


@struct.dataclass
class FilterLayers(Retriever):
    """Layers behind a filter read topk_j(u_j, k) of the prompt, u the filter's logits of the same step, and all that came after it.

    Filters, the `waiting` layers behind each, the layers before the first, and layers with a sliding window read everything; their
    slots are in the pool. The other layers' prompt keys and values are at `home`, and what a step reads of them is fetched.

    Args:
        filters: layers that choose, ascending.   tokens: k, an int, or the share of the prompt as a float in (0, 1]; what the cache
            was compressed with holds.
        waiting: dense layers behind a filter, while which a fetch would be under way.
        by: RawLogits() or Probabilities().   home: OnHost(), ByCallback() or OnDevice().

    A list of k tokens is one for all heads of all layers up to the next filter. Needs the whole prompt: nothing may be evicted.
    Raises: ValueError for filters that the model lacks, or that do not ascend, and for a budget that evicts.
    Source: OmniKV (ICLR 2025). Differs: the last query alone chooses; the released means over sixteen queries are left out.
    """

    state: ClassVar[type] = FilterState
    stepwise: ClassVar[bool] = True
    padded: ClassVar[bool] = True
    reads_keys: ClassVar[bool] = True
    reads_prompt: ClassVar[bool] = True
    numbered: ClassVar[bool] = True
    filters: tuple[int, ...] = struct.field(pytree_node=False, default=(2, 8, 18))
    tokens: Number = 4096
    waiting: Whole = struct.field(pytree_node=False, default=1)
    by: Function = RawLogits()
    home: OnDevice = OnHost()

    def __post_init__(self):
        check_budget(self.tokens)
        if not self.filters or list(self.filters) != sorted(set(self.filters)) or self.filters[0] < 0 or self.waiting < 0:
            raise ValueError(f"filters are layers in ascending order, and waiting layers 0 or more; got {self!r}")

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        if self.filters[-1] >= model.layers:
            raise ValueError(f"FilterLayers has filters {self.filters}, the model {model.layers} layers: name layers of this model")
        if mean_budget < length:
            raise ValueError(f"FilterLayers chooses among a whole prompt: leave the budget at 1.0; got {mean_budget} of {length}")

    def reads_few(self, layer: int) -> bool:
        """Whether a layer reads a filter's tokens alone."""
        return layer > self.filters[0] and all(not 0 <= layer - f <= self.waiting for f in self.filters)

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]]:
        few = jnp.array([self.reads_few(i) and window is None for i, window in enumerate(model.windows)])
        return [d.keep & few[:, None, None, None] for d in decided]

    def build(self, rows: list, decided: list, cache: Cache, encode: Encoder) -> FilterState:
        check_homes("FilterLayers", self.home, encode)
        check_whole("FilterLayers", rows, decided)
        lengths = [int(row.length[0]) for row in rows]
        wanted = [min(slots_of(self.tokens, n), n) for n in lengths]
        return FilterState(
            away=saved(self.home, [d.away for d in decided], [list(zip(row.k, row.v, strict=True)) for row in rows]),
            fetched=Counter.zeros(len(rows)),
            moved=Counter.zeros(len(rows)),
            prompt=jnp.asarray(lengths, jnp.int32),
            wanted=jnp.asarray(wanted, jnp.int32),
            most=min(size_class(max(wanted)), max(row.k[0].shape[2] for row in rows)),
            filters=self.filters,
            waiting=self.waiting,
        )

    def check_cache(self, cache: Cache) -> None:
        if not isinstance(state := cache.retrieval, FilterState):
            raise ValueError("the cache has no prompt outside its pool: compress it with this policy")
        if (state.filters, state.waiting) != (self.filters, self.waiting):
            raise ValueError(
                f"the cache has outside its pool what layers behind filters {state.filters} read, {state.waiting} waiting, not "
                f"{self.filters} and {self.waiting}: compress it with this policy"
            )

    def attend(self, inputs: AttentionInputs, cache: Cache, context: AttendContext):
        q, layer = inputs.q, context.layer
        if q.shape[3] != 1:
            raise ValueError(f"FilterLayers chooses for one token at a time; got {q.shape[3]}")
        here = context.encode.attention(q, cache, context)
        if layer in self.filters:
            cache = cache.replace(passed=self._chosen(q, cache, context))
        if not self.reads_few(layer) or context.window is not None:
            return *here, cache
        state, (slots, count) = cache.retrieval, cache.passed
        wide = jnp.broadcast_to(slots[:, None], (*q.shape[:2], slots.shape[-1]))
        k, v = (state.away.take(kind, layer, wide) for kind in (0, 1))
        there = attend_rows(q, k, v, jnp.broadcast_to(count[:, None], q.shape[:2]))
        return *together(there, here), cache.replace(retrieval=state.took(wide, q.shape[1] * count, context.real))

    def _chosen(self, q: PyTree, cache: Cache, context: AttendContext) -> tuple[Int32[Array, "b m"], Int32[Array, " b"]]:
        """Which tokens of the prompt later layers read, ascending, and how many."""
        state, z = cache.retrieval, context.encode.scores(q, cache, context.replace(window=None))[..., 0, :]
        prompt = jnp.arange(z.shape[-1]) < state.prompt[:, None]
        return top_tokens(self.by(jnp.where(prompt[:, None, None], z, -jnp.inf)), prompt, state.wanted, most=state.most)
