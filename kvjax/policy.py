"""A policy: score → allocate → select → merge → encode → retrieve, and when. The spine every method is a composition of."""

from dataclasses import fields

import jax
import numpy as np
from flax import struct

from kvjax import stage
from kvjax.allocate import Uniform
from kvjax.budget import check_budget, is_everything, slots_of
from kvjax.encode import Stored
from kvjax.encoder import Encoder
from kvjax.evidence import Need, union
from kvjax.merge import Drop
from kvjax.prefill.attention import CausalAttention, PrefillAttention
from kvjax.protocols import Decoder
from kvjax.retrieve import FullAttention
from kvjax.schedule import AfterPrefill, Schedule
from kvjax.score import Recency
from kvjax.select import TopK
from kvjax.short_repr import changed, one_line
from kvjax.stage_fields import check_fields
from kvjax.stages_together import check_together
from kvjax.types import Number

_SLOTS = {
    "score": stage.Scorer,
    "allocate": stage.Allocator,
    "select": stage.Selector,
    "merge": stage.Merger,
    "encode": Encoder,
    "retrieve": stage.Retriever,
    "when": Schedule,
}

#: Where the stages of a slot are that has no module of its name.
_WHERE = {"when": "such as kvjax.AfterPrefill(), kvjax.Every(1) or kvjax.WhenFull()"}


@struct.dataclass
class Policy:
    """What to keep of a KV cache, stage by stage; `policy.replace(merge=...)` is the ablation.

    Two policies built alike are equal, hash alike and share compiled programs; numbers (budgets included) are data and never
    recompile, stage types and sizes do.

    Args:
        score: evidence → worth of each slot.   allocate: scores → slots for every head, exact total.
        select: which slots stay.               merge: evicted into kept.
        encode: how slots are stored.           retrieve: which slots a query reads.
        when: AfterPrefill, Every(k) or WhenFull(slack).
        budget: int, mean slots per KV head of each prompt; float in (0, 1], share of the prompt kept.
        attention: how a prompt read for this policy alone attends to itself (`kvjax.prefill(lm, ids, needs=policy)`, `generate`).

    Raises:
        TypeError, ValueError: a budget or a stage of the wrong kind, or a field of a stage that holds what it cannot, when built
            from Python values.
    """

    score: stage.Scorer = Recency()
    allocate: stage.Allocator = Uniform()
    select: stage.Selector = TopK()
    merge: stage.Merger = Drop()
    encode: Encoder = Stored()
    retrieve: stage.Retriever = FullAttention()
    when: Schedule = AfterPrefill()
    budget: Number = 1.0
    attention: PrefillAttention = struct.field(pytree_node=False, default=CausalAttention())

    def __post_init__(self):
        if _misplaced(self.attention, PrefillAttention):
            raise TypeError(f"Policy.attention must be a PrefillAttention such as CausalAttention(); got {self.attention!r}")
        for slot, kind in _SLOTS.items():
            if _misplaced(getattr(self, slot), kind):
                where = _WHERE.get(slot, f"(see kvjax.{slot})")
                raise TypeError(f"Policy.{slot} must be a {kind.__name__} {where}; got {getattr(self, slot)!r}")
            if _undecorated(getattr(self, slot), kind):
                raise TypeError(f"{type(getattr(self, slot)).__name__} is no pytree: put @flax.struct.dataclass above the class")
            if isinstance(getattr(self, slot), kind):
                check_fields(getattr(self, slot))
        check_budget(self.budget)

    def __repr__(self) -> str:
        """In one line, the stages that differ from the default, and of these what differs from theirs."""
        return one_line("Policy", *changed(self))

    def in_full(self) -> str:
        """Every stage with every number of it: the name by which result rows tell policies apart."""
        return f"Policy({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in fields(self))})"

    @property
    def needs(self) -> frozenset[Need]:
        """The evidence its stages read."""
        return union(*(getattr(self, slot).needs for slot in _SLOTS))

    @property
    def padded(self) -> bool:
        """Whether decoding needs a static bound on the slots of a region."""
        return self.when.decoding or self.retrieve.padded or self.encode.padded

    @property
    def numbered(self) -> bool:
        """Whether a position is stored for every slot; not where all tokens stay, in order, in one region of each head."""
        stays = is_everything(self.budget) and not (self.allocate.given or self.when.decoding or self.merge.rewrites)
        return not stays or self.encode.numbered or self.retrieve.numbered

    def check(self, model: Decoder, length: int) -> None:
        """Raise ValueError if a stage fits neither the others, nor the model, nor a prompt of `length` tokens."""
        self.check_stages()
        for slot in _SLOTS:
            getattr(self, slot).check(model, length, self.mean_budget(length))

    def check_stages(self) -> None:
        """Raise ValueError for stages that do not go together, whatever the model and its prompts; numbers may be traced."""
        check_together(self)

    def mean_budget(self, length: int) -> int:
        """Mean slots per KV head for a prompt of `length` tokens, never more than it has."""
        return min(slots_of(self.budget, length), length)

    def fullest(self, length: np.ndarray, budget: np.ndarray, new_tokens: int, block: int) -> np.ndarray:
        """Most slots each region holds while more tokens come: `Schedule.fullest`, unless storage alone says what leaves."""
        return length + new_tokens if self.encode.moves else self.when.fullest(length, budget, new_tokens, block)

    @property
    def decode_score(self) -> stage.Scorer:
        """The scorer while decoding."""
        return self.score if self.when.score is None else self.when.score

    def decode_stages(self) -> "DecodeStages | None":
        """What the decode program contains beside its retriever: nothing if nothing is evicted while decoding.

        What was allocated is in the cache by then, as integers; the allocator is asked again only if `when` says so.
        """
        if not self.when.decoding:
            return None
        again = self.allocate if self.when.reallocate else None
        return DecodeStages(score=self.decode_score, select=self.select, merge=self.merge, when=self.when, allocate=again)


@struct.dataclass
class DecodeStages:
    """The stages of a policy that evicts while decoding."""

    score: stage.Scorer
    select: stage.Selector
    merge: stage.Merger
    when: Schedule
    allocate: stage.Allocator | None = None


def _undecorated(given: object, kind: type) -> bool:
    """Whether a stage is a plain class, which no transformation could take apart."""
    return isinstance(given, kind) and any(x is given for x in jax.tree.leaves(given))


def _misplaced(given: object, kind: type) -> bool:
    """Whether a field holds something a user put there by mistake.

    Pytree transformations put opaque placeholders there, which are no stages either: only what a script could pass is refused.
    """
    if isinstance(given, kind):
        return False
    mistakes = (str, int, float, list, tuple, dict, type, type(None), np.ndarray, jax.Array, stage.Stage)
    return isinstance(given, mistakes) or callable(given)
