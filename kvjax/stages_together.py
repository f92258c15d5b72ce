"""Which stages go together: what a policy is checked for whatever the model and its prompts."""

import itertools
from typing import Protocol, runtime_checkable

from kvjax import stage
from kvjax.encode import Absolute
from kvjax.encoder import Encoder
from kvjax.retrieve import FullAttention
from kvjax.schedule import Schedule


@runtime_checkable
class Stages(Protocol):
    """What is read of a policy (`kvjax.Policy`); `decode_score` is the scorer while decoding."""

    score: stage.Scorer
    allocate: stage.Allocator
    select: stage.Selector
    merge: stage.Merger
    encode: Encoder
    retrieve: stage.Retriever
    when: Schedule

    @property
    def decode_score(self) -> stage.Scorer: ...


def check_together(policy: Stages) -> None:
    """Raise ValueError for stages that do not go together; numbers may be traced.

    `docs/crossings.md` has the pairs.
    """
    _check_decoding(policy)
    _check_loops(policy)
    _check_reallocation(policy)
    _check_second(policy)
    _check_merger(policy)
    _check_retriever(policy)
    _check_storage(policy)


def _check_retriever(policy: Stages) -> None:
    """Raise ValueError for a retriever that the storage, or what the merger makes of slots, is not made for."""
    if policy.retrieve.reads_keys and not isinstance(policy.encode.positions, Absolute):
        raise ValueError(
            f"{type(policy.retrieve).__name__} reads stored keys where the text has them, which {policy.encode.positions!r} moves: "
            "use Absolute() positions or another retriever"
        )
    if policy.retrieve.still and policy.when.decoding:
        raise ValueError(
            f"{type(policy.retrieve).__name__} needs slots that keep their place, {type(policy.when).__name__} evicts while "
            "decoding: use when=AfterPrefill() or another retriever"
        )
    if policy.encode.parted and not isinstance(policy.retrieve, FullAttention):
        raise ValueError(f"{type(policy.retrieve).__name__} reads one pool, a cache in parts has several: use Stored()")
    if policy.retrieve.reads_cut and policy.merge.rewrites:
        raise ValueError(
            f"{type(policy.retrieve).__name__} reads what was cut, {type(policy.merge).__name__} counts it again: use merge=Drop()"
        )


def _check_decoding(policy: Stages) -> None:
    """Raise ValueError where a scorer or a selector has no meaning while decoding."""
    if not policy.when.decoding:
        return
    if any(need.second_pass for need in policy.decode_score.needs):
        raise ValueError(
            f"{type(policy.decode_score).__name__} reads a second pass over the prompt, which decoded tokens do not get: "
            "give the schedule a scorer of its own, such as Every(1, score=...)"
        )
    if policy.decode_score.prompt_only or any(need.prompt_only for need in policy.decode_score.needs):
        raise ValueError(
            f"{type(policy.decode_score).__name__} reads the prompt in a way that is not defined while decoding: use "
            "when=AfterPrefill(), or give the schedule a scorer of its own, such as Every(1, score=...)"
        )
    if policy.select.unbounded and not policy.when.grows:
        raise ValueError(
            f"{type(policy.select).__name__} may leave more slots than the budget, for which {type(policy.when).__name__} has no "
            "room: use Every(k, grows=True)"
        )


def _check_loops(policy: Stages) -> None:
    """An eviction while decoding loops over layers as data: raise ValueError for a stage that tells them apart before."""
    stages = (policy.decode_score, policy.select, policy.merge) if policy.when.decoding else ()
    static = [x for x in stages if x.static_layers]
    if static:
        raise ValueError(
            f"{type(static[0]).__name__} differs by layer, which an eviction while decoding cannot: give Every(score=...) or "
            "WhenFull(score=...) one scorer, and one selector and merger for all layers"
        )


def _check_second(policy: Stages) -> None:
    """Raise ValueError for a selector or an allocator that reads a second ranking which a scorer does not give."""
    scorers = (policy.score, policy.decode_score) if policy.when.decoding else (policy.score,)
    readers = [x for x in (policy.select, policy.allocate) if x.reads_second is not None]
    for reader, scorer in itertools.product(readers, scorers):
        if scorer.gives_second is not reader.reads_second:
            raise ValueError(
                f"{type(reader).__name__} reads a second ranking, which {type(scorer).__name__} does not give: take a scorer "
                "that does (NeighbourLikeness or ValueWeighted; LateAttention for GroupShares; SteadyMean for SparedFirst), "
                "or another stage in its place"
            )


def _check_merger(policy: Stages) -> None:
    """Raise ValueError for a merger without a state or evidence that it reads, and for stages without a memory they read."""
    for reader in (policy.encode, policy.retrieve):
        if not reader.reads_memory <= policy.merge.keeps:
            raise ValueError(
                f"{type(reader).__name__} reads {', '.join(sorted(reader.reads_memory))} of what a merger keeps, which "
                f"{type(policy.merge).__name__} does not: take the merger that does, or another stage in its place"
            )
    wanted = policy.merge.state_of
    if wanted is not None and not isinstance(policy.decode_score, wanted):
        raise ValueError(
            f"{type(policy.merge).__name__} reads what {wanted.__name__} keeps by slot; the scorer is "
            f"{type(policy.decode_score).__name__}: take that scorer, or another merger"
        )
    if policy.encode.evicts and policy.merge.rewrites:
        raise ValueError(
            f"the tiers of {policy.encode!r} let slots go while decoding, which {type(policy.merge).__name__} would not see: use "
            "merge=Drop(), or another rule of tiers"
        )
    if policy.when.decoding and policy.merge.needs:
        raise ValueError(
            f"{type(policy.merge).__name__} fits slots to evidence of the prompt, which decoded tokens do not have: use "
            "when=AfterPrefill(), or another merger"
        )


def _check_reallocation(policy: Stages) -> None:
    """Raise ValueError for an allocator that cannot be asked again while decoding."""
    if policy.when.reallocate and (not policy.allocate.exact or policy.allocate.needs):
        raise ValueError(
            f"{type(policy.allocate).__name__} cannot share out budgets anew while decoding: that takes one whose totals are "
            "exact and that reads scores alone (Adaptive, Uniform)"
        )


def _check_storage(policy: Stages) -> None:
    """Raise ValueError for a storage whose slots move, or cannot, where the schedule says otherwise."""
    if policy.encode.moves and not policy.when.decoding:
        raise ValueError(f"{policy.encode!r} moves slots by their scores while decoding: give it when=Every(1)")
    if policy.when.decoding and not policy.encode.movable:
        raise ValueError(
            f"{type(policy.when).__name__} evicts slots one by one while decoding, which an exact window and codes of several "
            f"slots do not allow: use when=AfterPrefill(), or another storage than {policy.encode}"
        )
