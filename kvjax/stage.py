"""The stages of a policy: frozen pytrees with pure methods. Sizes are static, numbers and weights are leaves."""

from typing import Any, ClassVar

from jaxtyping import Array, Bool, Float32, Int32

from kvjax.evidence import Evidence, Need
from kvjax.types import Mask, Scores
from kvjax.view import LayerView, Ranking


class Scorer:
    """Evidence → how much each slot is worth keeping.

    A scorer is a fold: `observe` updates its slot-aligned statistics with what was just seen (the whole prompt, or one decoded
    token) and `score` reads them. A scorer without statistics overrides `score` alone.
    """

    #: Names of the slot-aligned statistics carried while decoding; they start at zero and move with their slot.
    stats: ClassVar[tuple[str, ...]] = ()

    @property
    def needs(self) -> frozenset[Need]:
        """The evidence this scorer reads; nothing else is recorded for it."""
        return frozenset()

    def observe(self, view: LayerView, seen: Evidence) -> dict[str, Any]:
        """The statistics after the tokens in `seen`, each float32 [b, h, n]."""
        del seen
        return view.stats

    def score(self, view: LayerView, seen: Evidence) -> Scores:
        """Higher is kept first; values at invalid slots do not matter."""
        raise NotImplementedError(f"{type(self).__name__} must define score(view, seen)")


class Allocator:
    """Scores of all layers → slots for every head, summing exactly to the total."""

    def __call__(self, ranking: Ranking, total: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        """`total` is the mean number of slots per KV head of each row."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(ranking, total)")


class Selector:
    """Scores and budgets → which slots stay."""

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        """Slots that stay whatever their score; they count inside the budget."""
        raise NotImplementedError(f"{type(self).__name__} must define protected(view, budget)")

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        """Mask of exactly min(budget, held) slots a head, at least one."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(ranking, budget)")


class Merger:
    """Evicted slots into kept ones: new keys and values for the slots that stay."""

    #: False where keys and values are left as they are, so that nothing has to be written back.
    rewrites: ClassVar[bool] = True

    def __call__(self, view: LayerView, keep: Mask, scores: Float32[Array, "b h n"]) -> LayerView:
        """The view with merged k and v; slots outside `keep` are dropped afterwards."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(view, keep, scores)")


class Encoder:
    """How slots are stored."""

    def dtype(self, model_dtype: Any) -> Any:
        """The dtype of the pool for a model whose keys come in `model_dtype`."""
        raise NotImplementedError(f"{type(self).__name__} must define dtype(model_dtype)")


class Retriever:
    """Which of the slots held a query reads."""

    def attend(self, heads, cache, layer: int, *, positions, window: int | None):
        """(out [b h g t d], lse float32 [b h g t]) of the queries in `heads` over the layer's slots."""
        raise NotImplementedError(f"{type(self).__name__} must define attend(heads, cache, layer, ...)")


class Schedule:
    """When slots are evicted."""

    #: Whether anything is evicted while decoding; if not, score, allocate, select and merge are not part of the decode program.
    decoding: ClassVar[bool] = False
    #: Whether the prompt is cut to its budget before the first token is decoded.
    after_prefill: bool = True

    def due(self, steps: Int32[Array, " b"], new: Int32[Array, " b"], *, held: Any, budget: Any) -> Bool[Array, "b h"]:
        """Which heads are cut back to their budget after a step; `steps` counts a row's tokens since the prompt, `new` included."""
        raise NotImplementedError(f"{type(self).__name__} never evicts while decoding")

    def room(self, new_tokens: int, block: int) -> int:
        """Slots a head needs above its budget to take `new_tokens` more tokens, `block` at a time."""
        del block
        return new_tokens
