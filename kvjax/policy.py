"""A policy: score → allocate → select → merge → encode → retrieve, and when. The spine every method is a composition of."""

import itertools
from dataclasses import fields

import jax
import numpy as np
from flax import struct

from kvjax import stage
from kvjax.allocate import Uniform
from kvjax.budget import check_budget, is_everything, slots_of
from kvjax.encode import Absolute, Stored
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
        TypeError, ValueError: a budget or a stage of the wrong kind, when built from Python values.
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
                raise TypeError(f"Policy.{slot} must be a {kind.__name__} (see kvjax.{slot}); got {getattr(self, slot)!r}")
            if _undecorated(getattr(self, slot), kind):
                raise TypeError(f"{type(getattr(self, slot)).__name__} is no pytree: put @flax.struct.dataclass above the class")
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
        if self.when.decoding and any(need.second_pass for need in self.decode_score.needs):
            raise ValueError(
                f"{type(self.decode_score).__name__} reads a second pass over the prompt, which decoded tokens do not get: "
                "give the schedule a scorer of its own, such as Every(1, score=...)"
            )
        self._check_decoding()
        self._check_loops()
        self._check_reallocation()
        self._check_second()
        self._check_merger()
        self._check_retriever()
        if self.encode.moves and not self.when.decoding:
            raise ValueError(f"{self.encode!r} moves slots by their scores while decoding: give it when=Every(1)")
        if self.when.decoding and not self.encode.movable:
            raise ValueError(
                f"{type(self.when).__name__} evicts slots one by one while decoding, which an exact window and codes of several "
                f"slots do not allow: use when=AfterPrefill(), or another storage than {self.encode}"
            )

    def _check_retriever(self) -> None:
        """Raise ValueError for a retriever that the storage, or what the merger makes of slots, is not made for."""
        if self.retrieve.reads_keys and not isinstance(self.encode.positions, Absolute):
            raise ValueError(
                f"{type(self.retrieve).__name__} reads stored keys where the text has them, which {self.encode.positions!r} moves: "
                "use Absolute() positions or another retriever"
            )
        if self.encode.parted and not isinstance(self.retrieve, FullAttention):
            raise ValueError(f"{type(self.retrieve).__name__} reads one pool, a cache in parts has several: use Stored()")
        if self.retrieve.reads_cut and self.merge.rewrites:
            raise ValueError(
                f"{type(self.retrieve).__name__} reads what was cut, {type(self.merge).__name__} counts it again: use merge=Drop()"
            )

    def _check_decoding(self) -> None:
        """Raise ValueError where a scorer or a selector has no meaning while decoding."""
        if not self.when.decoding:
            return
        if any(need.prompt_only for need in self.decode_score.needs):
            raise ValueError(
                f"{type(self.decode_score).__name__} reads the prompt in a way that is not defined while decoding: use "
                "when=AfterPrefill(), or give the schedule a scorer of its own, such as Every(1, score=...)"
            )
        if self.select.unbounded and not self.when.grows:
            raise ValueError(
                f"{type(self.select).__name__} may leave more slots than the budget, for which {type(self.when).__name__} has no "
                "room: use Every(k, grows=True)"
            )

    def _check_loops(self) -> None:
        """An eviction while decoding loops over layers as data: raise ValueError for a stage that tells them apart before."""
        stages = self.decode_stages()
        static = [] if stages is None else [x for x in (stages.score, stages.select, stages.merge) if x.static_layers]
        if static:
            raise ValueError(
                f"{type(static[0]).__name__} differs by layer, which an eviction while decoding cannot: give Every(score=...) or "
                "WhenFull(score=...) one scorer, and one selector and merger for all layers"
            )

    def _check_second(self) -> None:
        """Raise ValueError for a selector or an allocator that reads a second ranking which a scorer does not give."""
        scorers = (self.score, self.decode_score) if self.when.decoding else (self.score,)
        readers = [x for x in (self.select, self.allocate) if x.reads_second is not None]
        for reader, scorer in itertools.product(readers, scorers):
            if scorer.gives_second is not reader.reads_second:
                raise ValueError(
                    f"{type(reader).__name__} reads a second ranking, which {type(scorer).__name__} does not give: take a scorer "
                    "that does (NeighbourLikeness or ValueWeighted; LateAttention for GroupShares; SteadyMean for SparedFirst), "
                    "or another stage in its place"
                )

    def _check_merger(self) -> None:
        """Raise ValueError for a merger without a state or evidence that it reads, and for stages without a memory they read."""
        for reader in (self.encode, self.retrieve):
            if not reader.reads_memory <= self.merge.keeps:
                raise ValueError(
                    f"{type(reader).__name__} reads {', '.join(sorted(reader.reads_memory))} of what a merger keeps, which "
                    f"{type(self.merge).__name__} does not: take the merger that does, or another stage in its place"
                )
        wanted = self.merge.state_of
        if wanted is not None and not isinstance(self.decode_score, wanted):
            raise ValueError(
                f"{type(self.merge).__name__} reads what {wanted.__name__} keeps by slot; the scorer is "
                f"{type(self.decode_score).__name__}: take that scorer, or another merger"
            )
        if self.when.decoding and self.merge.needs:
            raise ValueError(
                f"{type(self.merge).__name__} fits slots to evidence of the prompt, which decoded tokens do not have: use "
                "when=AfterPrefill(), or another merger"
            )

    def _check_reallocation(self) -> None:
        """Raise ValueError for an allocator that cannot be asked again while decoding."""
        if self.when.reallocate and (not self.allocate.exact or self.allocate.needs):
            raise ValueError(
                f"{type(self.allocate).__name__} cannot share out budgets anew while decoding: that takes one whose totals are "
                "exact and that reads scores alone (Adaptive, Uniform)"
            )

    def mean_budget(self, length: int) -> int:
        """Mean slots per KV head for a prompt of `length` tokens, never more than it has."""
        return min(slots_of(self.budget, length), length)

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
