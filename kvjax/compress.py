"""Compress: plan on the device, read a few integers back, pack what stays into a ragged pool."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kvjax import evidence as ev
from kvjax.cache import KVCache
from kvjax.heap import trim
from kvjax.layout import _BLOCK, plan_regions
from kvjax.policy import Policy, check_budget, slots_of
from kvjax.prefill import Prefilled, PrefilledRow
from kvjax.types import ALIGN
from kvjax.view import LayerView, Ranking


@jax.jit
def _judge(scorer, k, v, length, seen):
    """One layer's view with the scorer's statistics, and its scores."""
    n = jnp.arange(k.shape[2], dtype=jnp.int32)
    valid = jnp.broadcast_to(n < length[:, None, None], k.shape[:3])
    zeros = {name: jnp.zeros(k.shape[:3], jnp.float32) for name in scorer.stats}
    view = LayerView(k=k, v=v, pos=jnp.broadcast_to(n, k.shape[:3]), valid=valid, length=length, stats=zeros)
    view = view.replace(stats=scorer.observe(view, seen))
    return scorer.score(view, seen), view.stats


@jax.jit
def _plan(allocate, select, scores, length, total):
    """Which slots of one row stay: keep mask [l, 1, h, n], slots kept [l, 1, h], budget [l, 1, h]."""
    pos = jnp.broadcast_to(jnp.arange(scores.shape[-1], dtype=jnp.int32), scores.shape)
    valid = pos < length[:, None, None]
    protect = jax.vmap(lambda budget: select.protected(_flat_view(pos[0], valid[0], length), budget))
    even = jnp.broadcast_to(jnp.minimum(total, length)[None, :, None], scores.shape[:3])
    ranking = Ranking(scores=scores, protected=protect(even), valid=valid, pos=pos)
    budget = jnp.clip(allocate(ranking, total), 1, jnp.maximum(valid.sum(-1), 1)).astype(jnp.int32)
    keep = select(ranking.replace(protected=protect(budget)), budget)
    return keep, keep.sum(-1).astype(jnp.int32), budget


def _flat_view(pos, valid, length) -> LayerView:
    """A view for stages that read positions only."""
    return LayerView(k=None, v=None, pos=pos, valid=valid, length=length, stats={})


@jax.jit
def _everything(scores, length):
    """Keep all: for prompts that fit, and for schedules that leave the prompt alone."""
    keep = jnp.broadcast_to(jnp.arange(scores.shape[-1]) < length[:, None, None], scores.shape)
    return keep, keep.sum(-1).astype(jnp.int32)


@partial(jax.jit, donate_argnames=("pools",), static_argnames=("rewrites",))
def _pack_layer(pools, merger, k, v, stats, length, scores, keep, start, *, rewrites: bool):
    """Write one layer's kept slots into the pool, in position order, block by block."""
    n = jnp.broadcast_to(jnp.arange(k.shape[2], dtype=jnp.int32), k.shape[:3])
    if rewrites:
        valid = n < length[:, None, None]
        view = merger(LayerView(k=k, v=v, pos=n, valid=valid, length=length, stats=stats), keep, scores)
        k, v = view.k, view.v
    count = keep.sum(-1).astype(jnp.int32)[0]
    ranks = jnp.cumsum(keep[0], -1)
    wanted = jnp.arange(1, k.shape[2] + 1)
    order = jax.vmap(partial(jnp.searchsorted, side="left"), (0, None))(ranks, wanted).astype(jnp.int32)
    order = jnp.pad(order, ((0, 0), (0, _BLOCK)))
    source = jax.tree.map(lambda x: x[0], (k, v, n, stats))

    def region(h, pools):
        def block(i, pools):
            rows = lax.dynamic_slice(order, (h, i * _BLOCK), (1, _BLOCK))[0]
            take = lambda x: jnp.take(lax.dynamic_index_in_dim(x, h, 0, False), rows, 0, mode="clip")  # noqa: E731
            put = lambda pool, x: lax.dynamic_update_slice_in_dim(  # noqa: E731
                pool, take(x).astype(pool.dtype), start[h] + i * _BLOCK, 0
            )
            return jax.tree.map(put, pools, source)

        return lax.fori_loop(0, -(-count[h] // _BLOCK), block, pools)

    return lax.fori_loop(0, k.shape[1], region, pools)


def _check(pre: Prefilled, policy: Policy, reserve: Any) -> None:
    """Everything that can be wrong, before anything is traced."""
    if not isinstance(policy, Policy):
        raise TypeError(f"expected a kvjax policy such as kvjax.methods.snapkv(budget=256); got {policy!r}")
    check_budget(policy.budget)
    lacking = ev.missing(pre.needs, policy.needs)
    if lacking:
        raise ValueError(
            f"{type(policy.score).__name__} reads {', '.join(map(str, lacking))}, which this prefill did not record "
            f"(it has {', '.join(map(str, pre.needs)) or 'nothing'}): run kvjax.prefill(lm, ids, needs=policy), or leave needs= out"
        )
    if reserve is not None:
        check_budget(reserve)


def _decide(row: PrefilledRow, policy: Policy):
    """Scores, statistics, keep masks, counts and budgets of one row, all layers."""
    judged = [_judge(policy.score, k, v, row.length, e) for k, v, e in zip(row.k, row.v, row.evidence, strict=True)]
    scores = jnp.stack([s for s, _ in judged])
    length = int(row.length[0])
    total = policy.total(length)
    keep, count, budget = _plan(policy.allocate, policy.select, scores, row.length, jnp.asarray([total], jnp.int32))
    if isinstance(policy.budget, int | np.integer) and policy.budget > length:
        budget = jnp.full_like(budget, policy.budget)
    if not policy.when.after_prefill or total >= length:
        keep, count = _everything(scores, row.length)
    return scores, [s for _, s in judged], keep, count, budget


def _statistics(policy: Policy) -> tuple[str, ...]:
    """Statistics travel with their slots only if something is evicted while decoding."""
    return policy.score.stats if policy.when.decoding else ()


def _carried(pre: Prefilled, policy: Policy) -> tuple:
    """Each layer's evidence of all rows, cut to what the scorer goes on reading while decoding."""
    if not policy.when.decoding:
        return ()
    wanted = policy.needs
    layers = zip(*(row.evidence for row in pre.rows), strict=True)
    return tuple(ev.concatenate([ev.restrict(e, wanted) for e in rows]) for rows in layers)


def compress(pre: Prefilled, policy: Policy, *, room: int = 0, reserve: int | float | None = None) -> KVCache:
    """Keep what the policy keeps of a prefilled prompt, in a pool of just that size.

    Scores and budgets are planned on the device, the L·B·H integers read back, and the pool allocated at their sum, rounded up
    to a size class (at most 3%). The prefill stays as it is.

    Args:
        pre: prompts from `kvjax.prefill`.
        policy: what to keep.
        room: slots reserved per KV head for tokens to come; `decode` makes room by itself, this saves it a copy.
        reserve: a budget (same units) whose size class the pool gets at least, so that smaller budgets share one program.

    Raises:
        TypeError, ValueError: not a policy, a budget out of range, evidence the prefill did not record.
    """
    _check(pre, policy, reserve)
    trim()
    decided = [_decide(row, policy) for row in pre.rows]
    counts = np.concatenate([np.asarray(d[3]) for d in decided], axis=1)
    start, capacity, slots = plan_regions(counts + room, reserve_slots(pre, reserve, room))
    pools = _empty_pools(pre, policy, slots)
    for layer in range(pre.decoder.layers):  # in the order of the regions: a block may run into the next one
        for r, (row, (scores, stats, keep, _, _)) in enumerate(zip(pre.rows, decided, strict=True)):
            pools = _pack_layer(
                pools, policy.merge, row.k[layer], row.v[layer], {s: stats[layer][s] for s in _statistics(policy)},
                row.length, scores[layer], keep[layer], jnp.asarray(start[layer, r]), rewrites=policy.merge.rewrites,
            )  # fmt: skip
    k, v, pos, stats = pools
    lengths = jnp.concatenate([row.length for row in pre.rows])
    return KVCache(
        k=k,
        v=v,
        pos=pos,
        stats=stats,
        start=jnp.asarray(start),
        length=jnp.asarray(counts, jnp.int32),
        capacity=jnp.asarray(capacity),
        budget=jnp.concatenate([d[4] for d in decided], axis=1),
        position=lengths,
        steps=jnp.zeros_like(lengths),
        logits=jnp.stack([row.logits for row in pre.rows]),
        evidence=_carried(pre, policy),
    )


def _empty_pools(pre: Prefilled, policy: Policy, slots: int):
    """Zeroed pools for keys, values, positions and statistics."""
    shape, dtype = (slots, pre.decoder.head_dim), policy.encode.dtype(pre.rows[0].k[0].dtype)
    stats = {name: jnp.zeros(slots, jnp.float32) for name in _statistics(policy)}
    return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros(slots, jnp.int32), stats


def reserve_slots(pre: Prefilled, reserve: int | float | None, room: int) -> int:
    """Slots that a uniform budget of `reserve` would need for these prompts, alignment included."""
    if reserve is None:
        return 0
    most = sum(slots_of(reserve, length) + room + ALIGN for length in pre.lengths)
    return most * pre.decoder.layers * pre.decoder.heads
