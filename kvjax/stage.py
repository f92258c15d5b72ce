"""The stages of a policy: frozen pytrees with pure methods. Sizes are static, numbers and weights are leaves."""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.evidence import Evidence, Need
from kvjax.kernels.softmax import softmax
from kvjax.types import Keys, Layer, Mask, Queries, Scores
from kvjax.view import LayerView, Ranking


class Stage:
    """What the six stages of a policy share."""

    @property
    def needs(self) -> frozenset[Need]:
        """The evidence this stage reads; nothing else is recorded for it."""
        return frozenset()

    def at(self, layer: Layer) -> Any:
        """The stage as one layer uses it: tables with a layer axis cut to that layer's row."""
        del layer
        return self

    def check(self, model: Any, length: int, total: int) -> None:
        """Raise ValueError, before anything is traced, where the stage does not fit.

        Args:
            model: the decoder: its layers, heads, groups and head_dim.
            length: tokens of a prompt.   total: mean slots per KV head asked for it.
        """


class Scorer(Stage):
    """Evidence → how much each slot is worth keeping.

    A scorer is a fold: `observe` updates its slot-aligned statistics with what was just seen (the whole prompt, or one decoded
    token) and `score` reads them. A scorer without statistics overrides `score` alone.
    """

    #: Names of the slot-aligned statistics carried while decoding; they start at zero and move with their slot.
    stats: ClassVar[tuple[str, ...]] = ()

    def observe(self, view: LayerView, seen: Evidence) -> dict[str, Any]:
        """The statistics after the tokens in `seen`, each float32 [b, h, n]."""
        del seen
        return view.stats

    def score(self, view: LayerView, seen: Evidence) -> Scores:
        """Higher is kept first; values at invalid slots do not matter."""
        raise NotImplementedError(f"{type(self).__name__} must define score(view, seen)")


class Allocator(Stage):
    """Scores of all layers, and what else it measures of each, → slots for every head, summing exactly to the total."""

    #: False where a published rule leaves part of the total unused.
    exact: ClassVar[bool] = True

    def measure(self, view: LayerView, seen: Evidence) -> Any:
        """What it reads of one layer beside the scores: float32 arrays [b, ...]; `ranking.measured` stacks the layers."""
        del view, seen
        return ()

    def __call__(self, ranking: Ranking, total: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        """`total` is the mean number of slots per KV head of each row."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(ranking, total)")


class Selector(Stage):
    """Scores and budgets → which slots stay."""

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        """Slots that stay whatever their score; they count inside the budget."""
        raise NotImplementedError(f"{type(self).__name__} must define protected(view, budget)")

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        """Mask of exactly min(budget, held) slots a head, at least one."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(ranking, budget)")


class Merger(Stage):
    """Evicted slots into kept ones: new keys and values for the slots that stay."""

    #: False where keys and values are left as they are, so that nothing has to be written back.
    rewrites: ClassVar[bool] = True
    #: Numbers kept per layer and row from one eviction to the next, float32; NaN before the first.
    memory: ClassVar[tuple[str, ...]] = ()
    #: Slot-aligned statistics it keeps, float32, 0 for a new token; one called "bias" is added to its slot's attention scores.
    stats: ClassVar[tuple[str, ...]] = ()

    def __call__(
        self, view: LayerView, keep: Mask, scores: Float32[Array, "b h n"], memory: dict[str, Float32[Array, " b"]]
    ) -> tuple[LayerView, dict[str, Float32[Array, " b"]]]:
        """The view with merged k, v and statistics, and the new memory; slots outside `keep` are dropped afterwards.

        A head that evicts nothing keeps all its valid slots.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(view, keep, scores, memory)")


class Encoder(Stage):
    """How slots are stored: keys as rows of a pool, values in a store that has a home (`kvjax.encode.values`)."""

    #: Where values live.
    values: Any = None
    #: False where keys are stored as they are, but for their dtype.
    rewrites: ClassVar[bool] = True
    #: Whether attention needs a static bound on the slots of a region.
    padded: bool = False

    def keys(self, slots: int, d: int, dtype: Any) -> Array:
        """An empty key pool of `slots` rows for a model of head dimension d whose keys come in `dtype`."""
        raise NotImplementedError(f"{type(self).__name__} must define keys(slots, d, dtype)")

    def value_dtype(self, dtype: Any) -> Any:
        """The dtype values are stored in."""
        return dtype

    def encode(self, k: Keys) -> Array:
        """Rotated keys [b, h, n, d] of one layer as stored rows [b, h, n, r]."""
        raise NotImplementedError(f"{type(self).__name__} must define encode(k)")

    def decode(self, rows: Array, dtype: Any) -> Keys:
        """Stored rows [b, h, n, r] as keys in `dtype`."""
        raise NotImplementedError(f"{type(self).__name__} must define decode(rows, dtype)")

    def scores(self, q: Queries, cache: Any, layer: Layer, *, positions, window: int | None, cap: int):
        """q·k / sqrt(d) over every region padded to `cap` slots, float32 [b, h, g, t, cap]; -inf where a query sees no slot."""
        raise NotImplementedError(f"{type(self).__name__} must define scores(q, cache, layer, ...)")

    def attention(self, q: Queries, cache: Any, layer: int, *, positions, window: int | None, cap: int):
        """(out [b, h, g, t, d], lse float32 [b, h, g, t]) over all slots held."""
        raise NotImplementedError(f"{type(self).__name__} must define attention(q, cache, layer, ...)")

    def watched(
        self, q: Queries, cache: Any, layer: int, *, heads: tuple[int, ...], upto: Int32[Array, "b p"], n: int, **how: Any
    ) -> tuple[Array, Array, Float32[Array, "b p g n"]]:
        """`attention` of one query a row, and where it looks among the first `upto` of at most n slots of some KV heads.

        softmax over those slots alone, whatever the layer's window; 0 behind them. `how`: positions, window and cap of `attention`.
        """
        z = self.scores(q, cache, layer, positions=how["positions"], window=None, cap=n)[:, np.array(heads)][..., 0, :]
        return *self.attention(q, cache, layer, **how), softmax(jnp.where(jnp.arange(n) < upto[..., None, None], z, -jnp.inf))


class Retriever(Stage):
    """Which of the slots held a query reads, and what is fetched from elsewhere while decoding.

    Its state, `cache.retrieval`, is () or a pytree class with a static method `stack(states)` that makes one batch of several rows.
    A state with parts that decoding only reads has `split() -> (rest, parts)` and `joined(parts)`: they are not copied then.
    """

    #: Whether known tokens are fed one at a time, so that every token is seen by itself.
    stepwise: ClassVar[bool] = False
    #: Whether `attend` needs a static bound on the slots of a region.
    padded: ClassVar[bool] = False

    def build(self, rows: list, decided: list, cache: Any, encode: Encoder) -> Any:
        """The state after `compress`, on the host side.

        Args:
            rows: the prefilled rows.   decided: for each row what was decided: scores, keep, count, budget, all [l, 1, h, ...].
            cache: what was kept, without this state.
        """
        del rows, decided, cache, encode
        return ()

    def begin(self, cache: Any) -> Any:
        """The cache before the first layer of a step."""
        return cache

    def attend(self, heads: Any, cache: Any, layer: int, *, positions, window: int | None, encode: Encoder, cap: int):
        """(out [b h g t d], lse float32 [b h g t], cache) of the queries in `heads` over the layer's slots.

        The cache is the one given, with what the retriever notes of this reading in its state.
        """
        raise NotImplementedError(f"{type(self).__name__} must define attend(heads, cache, layer, ...)")

    def end(self, cache: Any, encode: Encoder, *, count: Int32[Array, " b"]) -> Any:
        """The cache after the last layer of a step that appended `count` tokens a row."""
        del encode, count
        return cache


class Schedule(Stage):
    """When slots are evicted."""

    #: Whether anything is evicted while decoding; if not, score, allocate, select and merge are not part of the decode program.
    decoding: ClassVar[bool] = False
    #: Whether the prompt is cut to its budget before the first token is decoded.
    after_prefill: bool = True

    def due(self, steps: Int32[Array, " b"], new: Int32[Array, " b"], *, held: Any, budget: Any) -> Bool[Array, "*l b h"]:
        """Which heads are cut back to their budget after a step; `steps` counts a row's tokens since the prompt, `new` included."""
        raise NotImplementedError(f"{type(self).__name__} never evicts while decoding")

    def room(self, new_tokens: int, block: int) -> int:
        """Slots a head needs above its budget to take `new_tokens` more tokens, `block` at a time."""
        del block
        return new_tokens
