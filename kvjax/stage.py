"""The stages of a policy: frozen pytrees with pure methods. Sizes are static, numbers and weights are leaves.

A stage may keep numbers by slot: its *state*, a pytree of arrays [b, h, n, ...] with one life cycle. `init` gives it for slots that
nothing is known of (zeros: a new token gets them), `observe` brings it up to date with what was just seen, and it moves with its
slots wherever they go. A stage is handed a view whose `state` is its own.
"""

from typing import ClassVar

import jax
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.attend_context import AttendContext
from kvjax.attention_inputs import AttentionInputs
from kvjax.evidence import Evidence, Need
from kvjax.protocols import Cache, Decoder, Storage
from kvjax.types import Layer, Mask, Queries, Scores
from kvjax.view import LayerView, Ranking


class Stage:
    """What the stages of a policy share."""

    #: Whether `at` must know its layer when a program is built: not while an eviction loops over layers.
    static_layers: ClassVar[bool] = False

    @property
    def needs(self) -> frozenset[Need]:
        """The evidence this stage reads; nothing else is recorded for it."""
        return frozenset()

    def at(self, layer: Layer) -> PyTree:
        """The stage as one layer uses it: tables with a layer axis cut to that layer's row."""
        del layer
        return self

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        """Raise ValueError, before anything is traced, where the stage does not fit.

        Args:
            model: the decoder: its layers, heads, groups and head_dim.
            length: tokens of a prompt.   mean_budget: mean slots per KV head asked for it.
        """


class Scorer(Stage):
    """Evidence → how much each slot is worth keeping.

    A scorer is a fold: `observe` updates its state with what was just seen (the whole prompt, or one decoded token) and `score`
    reads it. A scorer without state overrides `score` alone.
    """

    #: What `second` gives, so that only a selector or an allocator that reads the same is paired with it.
    gives_second: ClassVar[type | None] = None
    #: Whether it has no meaning while decoding.
    prompt_only: ClassVar[bool] = False

    def init(self, shape: tuple[int, int, int]) -> PyTree:
        """The state of slots [b, h, n] nothing is known of: zeros, since a new token gets them; () for none."""
        del shape
        return ()

    def observe(self, view: LayerView, evidence: Evidence) -> PyTree:
        """`view.state` after the tokens in `evidence`."""
        del evidence
        return view.state

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        """Higher is kept first; values at invalid slots do not matter."""
        raise NotImplementedError(f"{type(self).__name__} must define score(view, evidence)")

    def second(self, view: LayerView, evidence: Evidence, scores: Scores) -> PyTree:
        """A second ranking beside `scores`, for selectors of two stages (`ranking.second`); () for none."""
        del view, evidence, scores
        return ()


class Allocator(Stage):
    """Scores of all layers, and what else it measures of each, → slots for every head, summing exactly to the total."""

    #: False where a published rule leaves part of the total unused, or asks for more.
    exact: ClassVar[bool] = True
    #: Whether a layer's budgets depend on that layer alone (its scores, its place in the model, the prompt's length), so that it
    #: can be cut as soon as it has been read. It is then given a ranking of some layers: `ranking.layers` says how many the model
    #: has, `ranking.own` cuts what is known of all of them. A layer's budgets must not depend on which others are ranked with it.
    by_layer: ClassVar[bool] = False
    #: What it reads as `ranking.second`, the scorer's second ranking; None if it does not.
    reads_second: ClassVar[type | None] = None
    #: Whether it knows its budgets by itself: the policy's is not read, and a prompt that would fit it is cut all the same.
    given: ClassVar[bool] = False

    def measure(self, view: LayerView, evidence: Evidence) -> PyTree:
        """What it reads of one layer beside the scores: float32 arrays [b, ...]; `ranking.measured` stacks the layers."""
        del view, evidence
        return ()

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        """Slots of every head; a budget above what a head holds leaves it free to grow while decoding.

        `mean_budget` is the mean number of slots per KV head of each row.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(ranking, mean_budget)")


class Selector(Stage):
    """Scores and budgets → which slots stay."""

    #: False where another number of slots than the budget may stay: fewer, or what is held grows (`Every(grows=True)`).
    exact: ClassVar[bool] = True
    #: What it reads as `ranking.second`, the scorer's second ranking; None if it does not.
    reads_second: ClassVar[type | None] = None
    #: Whether it may leave more slots than the budget: then only `Every(grows=True)` has room for them while decoding.
    unbounded: ClassVar[bool] = False
    #: Whether a token of the prompt that no head of a layer keeps is gone from the layers that follow, which never compute it: then
    #: a prompt is compressed as it is read, `kvjax.prefill(streaming=policy)`.
    leaves: ClassVar[bool] = False

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        """Slots that stay whatever their score; they count inside the budget."""
        raise NotImplementedError(f"{type(self).__name__} must define protected(view, budget)")

    def protected_by_layer(self, view: LayerView, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        """`protected` of every layer, each with its budgets; the slots are a prompt's, the same in all layers."""
        return jax.vmap(lambda budget: self.protected(view, budget))(budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        """Mask of min(budget, held) slots a head, or of fewer where the selector is not exact; at least one."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(ranking, budget)")


class Merger(Stage):
    """Evicted slots into kept ones: new keys and values for the slots that stay."""

    #: False where keys and values are left as they are, so that nothing has to be written back.
    rewrites: ClassVar[bool] = True
    #: The scorer whose state by slot it reads and rewrites as `view.scored`; None for none.
    state_of: ClassVar[type[Scorer] | None] = None
    #: Names of what its memory holds for other stages to read, a dict then; none where only the merger itself reads it.
    keeps: ClassVar[frozenset[str]] = frozenset()
    #: Whether merged slots carry a bias that is added to their attention scores, `view.bias`.
    biased: ClassVar[bool] = False

    def init(self, shape: tuple[int, int, int]) -> PyTree:
        """The state of slots [b, h, n] nothing was merged into: zeros; () for none."""
        del shape
        return ()

    def sized(self, widest: int) -> "Merger":
        """The merger for heads of a prompt that keep at most `widest` slots, a size class: called before it is compiled."""
        del widest
        return self

    def begin(self, rows: int) -> PyTree:
        """Numbers kept of a layer's rows from one eviction to the next, float32 [rows, ...] each, before the first; () for none."""
        del rows
        return ()

    def __call__(self, view: LayerView, keep: Mask, scores: Float32[Array, "b h n"], memory: PyTree) -> tuple[LayerView, PyTree]:
        """The view with merged k, v, state, scored and bias, and the new memory (see `begin`); slots outside `keep` are dropped
        afterwards. A merger with needs finds their evidence in `view.seen`; there is none while decoding.

        A head that evicts nothing keeps all its valid slots.
        """
        raise NotImplementedError(f"{type(self).__name__} must define __call__(view, keep, scores, memory)")


class Retriever(Stage):
    """Which of the slots held a query reads, and what is fetched from elsewhere while decoding."""

    #: Whether known tokens are fed one at a time, so that every token is seen by itself.
    stepwise: ClassVar[bool] = False
    #: Whether `attend` needs a static bound on the slots of a region.
    padded: ClassVar[bool] = False
    #: Whether it reads stored keys itself, beside the encoder's scores: they must stand where the text has them.
    reads_keys: ClassVar[bool] = False
    #: Whether `build` reads the prompt's keys and values or its scores: then a prompt cannot be compressed layer by layer.
    reads_prompt: ClassVar[bool] = False
    #: Whether it needs a position stored for every slot: it holds some slots elsewhere, overwrites them, or cuts regions.
    numbered: ClassVar[bool] = False
    #: Whether it needs slots that keep their place: then nothing may be evicted while decoding.
    still: ClassVar[bool] = False
    #: What it reads of the merger's memory (`cache.memory`), by name (`Merger.keeps`).
    reads_memory: ClassVar[frozenset[str]] = frozenset()
    #: Whether it goes on reading what was cut from the prompt, from a copy: then nothing of it may be merged into what stays.
    reads_cut: ClassVar[bool] = False
    #: The class of what `build` makes, where that may hold slots outside the pool; None: `check_cache` alone tells whose it is.
    state: ClassVar[type | None] = None

    @property
    def builds(self) -> bool:
        """Whether `compress` makes a state for it, on the host side."""
        return type(self).build is not Retriever.build

    def reads(self, state: PyTree) -> bool:
        """Whether it reads slots that a cache's state holds outside the pool: a retriever that builds no state reads none."""
        return self.builds if self.state is None else isinstance(state, self.state)

    def away(self, rows: list, decided: list, model: Decoder) -> list[Bool[Array, "l 1 h _"]] | None:
        """For each row which of the slots that stay do not enter the pool: `build` puts them elsewhere. None where all enter it.

        Args:
            rows, decided: as `build` gets them.   model: the decoder.
        """
        del rows, decided, model
        return None

    def build(self, rows: list, decided: list, cache: Cache, encode: Storage) -> PyTree:
        """The state after `compress`, on the host side: a `RetrieverState`, or ().

        Args:
            rows: the prefilled rows.   decided: for each row what was decided: scores, keep, count, budget, and away if something
                is, all [l, 1, h, ...].
            cache: what entered the pool, without this state.
        """
        del rows, decided, cache, encode
        return ()

    def check_cache(self, cache: Cache) -> None:
        """Raise ValueError where the cache does not hold what `attend` reads; called before a decode is traced, and in it."""

    def asked(self, inputs: AttentionInputs) -> AttentionInputs:
        """A layer's inputs as `attend` asks by them, whose denominators `lse` are: what scorers take the step's attention from."""
        return inputs

    def attend(
        self, inputs: AttentionInputs, cache: Cache, context: AttendContext
    ) -> tuple[Queries, Float32[Array, "b h g t"], PyTree]:
        """(out, lse, cache) of the layer's queries over its slots.

        The cache is the one given, with what the retriever notes of this reading in its state, and with what it hands on to later
        layers of the same step in `cache.passed`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define attend(inputs, cache, context)")

    def end(self, cache: Cache, encode: Storage, *, count: Int32[Array, " b"]) -> PyTree:
        """The cache after the last layer of a step that appended `count` tokens a row."""
        del encode, count
        return cache
