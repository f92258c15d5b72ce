"""Compress: plan on the device, read a few integers back, pack what stays into a ragged pool."""

import math
from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from kvjax import evidence as ev
from kvjax.budget import check_budget, slots_of
from kvjax.cache.heap import trim
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layout import plan_regions
from kvjax.cache.mesh import of_process
from kvjax.cache.parts import together
from kvjax.checks import check_headroom
from kvjax.compress.decision import Decision
from kvjax.compress.pack import pack
from kvjax.compress.score_prompt import PromptScores, RowScores, check, scores_of
from kvjax.compress.stage_checks import check_budgets, check_decided, check_traced
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.reach import within_reach
from kvjax.schedule import AfterPrefill
from kvjax.stage import Allocator
from kvjax.types import ALIGN, AT_REST, DECODING
from kvjax.view import LayerView, Ranking


@partial(jax.jit, static_argnames="of")
def plan_row(allocate, select, scores, second, measured, length, mean_budget, first=0, at=None, window=None, *, of=None):
    """Which slots of one row stay: keep mask [l, 1, h, n], slots kept [l, 1, h], budget [l, 1, h].

    `window` [l, 1] is of `windows_of`: what a layer's sliding window has left behind goes first.
    """
    view = LayerView.of_prompt(length, scores.shape[1:], pos=at)
    pos, valid = (jnp.broadcast_to(x, scores.shape) for x in (view.pos, view.valid))
    even = jnp.broadcast_to(jnp.minimum(mean_budget, length)[None, :, None], scores.shape[:3])
    protected = select.protected_by_layer(view, even)
    ranking = Ranking(
        scores=within_reach(scores, pos, length, window), protected=protected, valid=valid, pos=pos, second=second,
        measured=measured, first=first, of=of,
    )  # fmt: skip
    budget = allocate(ranking, mean_budget)
    check_budgets(allocate, budget, scores.shape[:3])
    budget = jnp.maximum(budget, 1).astype(jnp.int32)
    keep = select(ranking.replace(protected=select.protected_by_layer(view, budget)), budget)
    return keep, keep.sum(-1).astype(jnp.int32), budget


def windows_of(row: PrefilledRow, policy: Policy) -> Int32[Array, "l 1"] | None:
    """Each layer's sliding window in positions of the text; None where none has one, or it counts what is kept."""
    windows = [evidence.window for evidence in row.evidence]
    return None if policy.encode.positions.ranked or windows[0] is None else jnp.stack(windows)


def budget_from_now_on(
    allocate: Allocator, planned: Int32[Array, "l 1 h"], asked: Int32[Array, "1"], length: Int32[Array, "1"]
) -> Int32[Array, "l 1 h"]:
    """What eviction while decoding cuts back to: `planned`, or as many slots as were asked for where the prompt has fewer.

    An allocator that knows its budgets by itself is not asked for any.
    """
    return planned if allocate.given else jnp.where((asked > length)[:, None], asked[:, None], planned)


@jax.jit
def everything(scores, length, pos=None):
    """Keep all: for prompts that fit, and for schedules that leave the prompt alone."""
    keep = jnp.broadcast_to(LayerView.of_prompt(length, scores.shape[1:], pos=pos).valid, scores.shape)
    return keep, keep.sum(-1).astype(jnp.int32)


def _decide(row: PrefilledRow, policy: Policy, found: RowScores, *, first: int, of: int) -> Decision:
    """Keep masks, counts and budgets of one row, with its scores and state."""
    scores, second, state, measured = found
    length = int(row.length[0])
    mean_budget = policy.mean_budget(length)
    asked = jnp.asarray([mean_budget], jnp.int32)
    keep, count, budget = plan_row(
        policy.allocate, policy.select, scores, second, measured, row.length, asked, np.int32(first), row.pos,
        windows_of(row, policy), of=of,
    )  # fmt: skip
    budget = budget_from_now_on(policy.allocate, budget, jnp.asarray([slots_of(policy.budget, length)], jnp.int32), row.length)
    fits = mean_budget >= length and not policy.allocate.given
    if not policy.when.after_prefill or fits:
        keep, count = everything(scores, row.length, row.pos)
    return Decision(scores=scores, state=state, keep=keep, count=count, budget=budget, mean_budget=mean_budget)


def carried(rows: Iterable[Iterable[ev.Evidence]], recorded: Iterable[ev.Need], policy: Policy) -> tuple[ev.Evidence, ...]:
    """Each layer's evidence of all rows, cut to what the scorer goes on reading while decoding."""
    if not policy.when.decoding:
        return ()
    wanted = policy.decode_score.needs
    return tuple(ev.concatenate([ev.restrict(e, recorded, wanted) for e in layer]) for layer in zip(*rows, strict=True))


def compress(
    pre: Prefilled, policy: Policy, *, headroom: int = 0, pool_budget: int | float | None = None, scores: PromptScores | None = None
) -> KVCache:
    """Keep what the policy keeps of a prefilled prompt, in a pool of just that size.

    Scores and budgets are planned on the device, the L·B·H integers read back, and the pool allocated at their sum, rounded up
    to a size class (at most 1.6%; 6.25% with headroom). The prefill stays as it is.

    Args:
        pre: prompts from `kvjax.prefill`.
        policy: what to keep.
        headroom: tokens to come that every head has room for; decoding up to so many moves nothing. `decode` makes room by itself
            otherwise.
        pool_budget: a budget (same units) whose size class the pool gets at least, so that smaller budgets share one program.
        scores: from `score_prompt`, with a policy of the same scorer and allocator; None: scored here.

    Raises:
        TypeError, ValueError: not a policy, a budget out of range, evidence the prefill did not record, calibrated tables of
            another model, scores of other prompts or by other stages, a headroom that is no integer of 0 or more, a stage that
            breaks the promise of its kind, a call under `jit`, `vmap` or `grad`.
    """
    _check_given(pre, policy, pool_budget, scores)
    headroom = check_headroom(headroom)
    trim()
    pre, scores = of_process((pre, scores))
    decided = decide(pre, policy, scores or scores_of(pre, policy))
    check_decided(pre, policy, decided)
    away = policy.retrieve.away(list(pre.rows), decided, pre.decoder)
    if away is not None:
        _check_away(policy)
        decided = [d.replace(away=mask) for d, mask in zip(decided, away, strict=True)]
    slots = reserve_slots(pre, policy, pool_budget, headroom)
    here, numbered = [d.here for d in decided], is_numbered(pre, policy)
    cache = packed(pre, policy, here, headroom=headroom, reserve_slots=slots, numbered=numbered)
    return cache.replace(retrieval=policy.retrieve.build(list(pre.rows), decided, cache, policy.encode))


def _check_given(pre: Prefilled, policy: Policy, pool_budget: int | float | None, scores: PromptScores | None) -> None:
    """Raise TypeError or ValueError for arguments of `compress` that do not fit each other."""
    check_traced(pre, policy, pool_budget)
    check(pre, policy)
    if pool_budget is not None:
        check_budget(pool_budget)
    if scores is not None and not scores.serves(pre, policy):
        raise ValueError(
            f"scores are of other prompts, or by other stages than the policy's (by {scores.by}): use kvjax.score_prompt"
        )


def _check_away(policy: Policy) -> None:
    """Raise ValueError where slots outside the pool would miss what happens to those in it."""
    if policy.when.decoding or policy.merge.rewrites:
        raise ValueError(
            f"{type(policy.retrieve).__name__} holds slots outside the pool, where they are neither evicted while decoding nor "
            f"merged: use when=AfterPrefill() and merge=Drop(); got {type(policy.when).__name__}, {type(policy.merge).__name__}"
        )


def decide(pre: Prefilled, policy: Policy, scores: PromptScores) -> list[Decision]:
    """What of each row stays."""
    where = dict(first=pre.first, of=pre.decoder.layers)
    return [_decide(row, policy, of_row, **where) for row, of_row in zip(pre.rows, scores.rows, strict=True)]


def is_numbered(pre: Prefilled, policy: Policy) -> bool:
    """Whether a position is stored for every slot: by the policy, or because not every token of the prompts is there."""
    return policy.numbered or any(row.pos is not None for row in pre.rows)


def packed(
    pre: Prefilled, policy: Policy, decided: list[Decision], *, headroom: int, reserve_slots: int, numbered: bool
) -> KVCache:
    """What was decided, in a pool of just that size, without the retriever's state; positions are stored if `numbered`."""
    if policy.encode.parted:
        return _packed_parts(pre, policy, decided, headroom=headroom, reserve_slots=reserve_slots, numbered=numbered)
    counts = np.concatenate([np.asarray(d.count) for d in decided], axis=1)
    check_together(policy, counts)
    budget = jnp.concatenate([d.budget for d in decided], axis=1)
    asked = policy.fullest(counts, np.asarray(budget), headroom, 1) if headroom else counts
    align, steps = math.lcm(ALIGN, policy.encode.page), DECODING if headroom else AT_REST
    start, capacity, slots = plan_regions(asked, reserve_slots, align, steps=steps)
    pools = pack(pre, policy, decided, start, slots, numbered=numbered)
    lengths = jnp.concatenate([row.length for row in pre.rows])
    return KVCache(
        **pools,
        start=jnp.asarray(start),
        length=jnp.asarray(counts, jnp.int32),
        capacity=jnp.asarray(capacity),
        budget=budget,
        position=lengths,
        steps=jnp.zeros_like(lengths),
        logits=jnp.stack([row.logits for row in pre.rows]),
        made_by=pre.made_by,
        evidence=carried([row.evidence for row in pre.rows], pre.needs, policy),
        placement=policy.encode.placement,
        positions=policy.encode.positions,
        codecs=policy.encode.words,
    )


def check_together(policy: Policy, counts: Int32[np.ndarray, "l b h"]) -> None:
    """Raise ValueError where heads of a layer keep different numbers of slots, and the i-th slots of all heads are one code."""
    apart = np.argwhere((counts != counts[..., :1]).any(-1))
    if policy.encode.together and len(apart):
        layer, row = apart[0]
        raise ValueError(
            f"the storage codes the i-th slots of all heads of a layer as one, so that all hold as many; {policy.allocate!r} and "
            f"{policy.select!r} leave {counts[layer, row].tolist()} in a layer: keep as many in each, with allocate=Uniform(), or "
            "code heads apart"
        )


def _packed_parts(
    pre: Prefilled, policy: Policy, decided: list[Decision], *, headroom: int, reserve_slots: int, numbered: bool
) -> KVCache:
    """What was decided, in parts, each as if it were a cache."""
    parts, layers = [], len(pre.layers)
    for part in policy.encode.divided(pre, decided):
        reserve = -(-reserve_slots * len(part.pre.layers) // layers)
        mine = policy.replace(encode=part.store, when=policy.when if part.scored else AfterPrefill())
        cache = packed(part.pre, mine, part.decided, headroom=headroom, reserve_slots=reserve, numbered=numbered)
        parts.append(cache.replace(first=part.pre.first - pre.first))
    lengths = jnp.concatenate([row.length for row in pre.rows])
    return together(
        parts,
        position=lengths,
        logits=jnp.stack([row.logits for row in pre.rows]),
        made_by=pre.made_by,
        budget=jnp.concatenate([d.budget for d in decided], axis=1),
        evidence=carried([row.evidence for row in pre.rows], pre.needs, policy),
    )


def reserve_slots(pre: Prefilled, policy: Policy, pool_budget: int | float | None, headroom: int) -> int:
    """Slots that a uniform budget of `pool_budget` would need for these prompts, alignment included."""
    if pool_budget is None:
        return 0
    most = sum(slots_of(pool_budget, length) + headroom + math.lcm(ALIGN, policy.encode.page) for length in pre.lengths)
    return most * pre.decoder.layers * pre.decoder.heads
