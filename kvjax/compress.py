"""Compress: plan on the device, read a few integers back, pack what stays into a ragged pool."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from kvjax import evidence as ev
from kvjax.cache import KVCache
from kvjax.heap import trim
from kvjax.layout import plan_regions
from kvjax.policy import Policy, check_budget, slots_of
from kvjax.prefill import Prefilled, PrefilledRow
from kvjax.types import ALIGN, BLOCK, position_dtype
from kvjax.view import LayerView, Ranking


@struct.dataclass
class Decision:
    """What was decided for one row, all layers.

    Attributes:
        scores: [l, 1, h, n].   stats: each layer's statistics, [1, h, n] each.
        keep: which slots stay.   count: how many.   budget: what eviction while decoding cuts back to.
        total: mean slots per KV head that were asked for.
    """

    scores: Float32[Array, "l b h n"]
    stats: list
    keep: Bool[Array, "l b h n"]
    count: Int32[Array, "l b h"]
    budget: Int32[Array, "l b h"]
    total: int = struct.field(pytree_node=False)


@jax.jit
def _judge(scorer, allocate, k, v, length, seen):
    """One layer's scores, the scorer's statistics, and what the allocator measures."""
    n = jnp.arange(k.shape[2], dtype=jnp.int32)
    valid = jnp.broadcast_to(n < length[:, None, None], k.shape[:3])
    zeros = {name: jnp.zeros(k.shape[:3], jnp.float32) for name in scorer.stats}
    view = LayerView(k=k, v=v, pos=jnp.broadcast_to(n, k.shape[:3]), valid=valid, length=length, stats=zeros)
    view = view.replace(stats=scorer.observe(view, seen))
    return scorer.score(view, seen), view.stats, allocate.measure(view, seen)


@jax.jit
def _plan(allocate, select, scores, measured, length, total):
    """Which slots of one row stay: keep mask [l, 1, h, n], slots kept [l, 1, h], budget [l, 1, h]."""
    pos = jnp.broadcast_to(jnp.arange(scores.shape[-1], dtype=jnp.int32), scores.shape)
    valid = pos < length[:, None, None]
    protect = jax.vmap(lambda budget: select.protected(_flat_view(pos[0], valid[0], length), budget))
    even = jnp.broadcast_to(jnp.minimum(total, length)[None, :, None], scores.shape[:3])
    ranking = Ranking(scores=scores, protected=protect(even), valid=valid, pos=pos, measured=measured)
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


def _rows(merger, encode, k, v, stats, length, scores, keep):
    """One layer as it will be stored (key rows, values, positions, statistics), and the merger's memory."""
    n = jnp.broadcast_to(jnp.arange(k.shape[2], dtype=jnp.int32), k.shape[:3])
    memory = {name: jnp.full(k.shape[0], jnp.nan, jnp.float32) for name in merger.memory}
    if merger.rewrites:
        valid = n < length[:, None, None]
        view, memory = merger(LayerView(k=k, v=v, pos=n, valid=valid, length=length, stats=stats), keep, scores, memory)
        k, v = view.k, view.v
    return jax.tree.map(lambda x: x[0], dict(k=encode.encode(k), v=v, pos=n, stats=stats)), memory


@partial(jax.jit, donate_argnames=("pools",))
def _store_layer(merger, encode, pools, layer, keep, start):
    """A layer's kept slots written into the pools, the rows of what has no pool here, and the merger's memory."""
    rows, memory = _rows(merger, encode, keep=keep, **layer)
    rest = {name: x for name, x in rows.items() if name not in pools}
    return _pack_layer(pools, {name: rows[name] for name in pools}, keep, start), rest, memory


def _pack_layer(pools, source, keep, start):
    """Write one layer's kept slots into the pools, in position order, block by block."""
    count = keep.sum(-1).astype(jnp.int32)[0]
    ranks = jnp.cumsum(keep[0], -1)
    wanted = jnp.arange(1, keep.shape[-1] + 1)
    order = jax.vmap(partial(jnp.searchsorted, side="left"), (0, None))(ranks, wanted).astype(jnp.int32)
    order = jnp.pad(order, ((0, 0), (0, BLOCK)))

    def region(h, pools):
        def block(i, pools):
            rows = lax.dynamic_slice(order, (h, i * BLOCK), (1, BLOCK))[0]
            take = lambda x: jnp.take(lax.dynamic_index_in_dim(x, h, 0, False), rows, 0, mode="clip")  # noqa: E731
            put = lambda pool, x: lax.dynamic_update_slice_in_dim(  # noqa: E731
                pool, take(x).astype(pool.dtype), start[h] + i * BLOCK, 0
            )
            return jax.tree.map(put, pools, source)

        return lax.fori_loop(0, -(-count[h] // BLOCK), block, pools)

    return lax.fori_loop(0, keep.shape[1], region, pools)


@partial(jax.jit, donate_argnames=("store",), static_argnames=("values",))
def _put_layer(values, store, rows, keep, start):
    """Write one layer's kept values into a store that lives elsewhere, in position order."""
    rank = jnp.cumsum(keep[0], -1, dtype=jnp.int32) - 1
    slots = jnp.where(keep[0], start[:, None] + rank, jnp.iinfo(jnp.int32).max)
    return values.put(store, slots.reshape(-1), rows.reshape(-1, rows.shape[-1]))


def _check(pre: Prefilled, policy: Policy) -> None:
    """Everything that can be wrong, before anything is traced."""
    if not isinstance(policy, Policy):
        raise TypeError(f"expected a kvjax policy such as kvjax.methods.snapkv(budget=256); got {policy!r}")
    check_budget(policy.budget)
    for length in pre.lengths:
        policy.check(pre.decoder, length)
    lacking = ev.missing(pre.needs, policy.needs)
    if lacking:
        raise ValueError(
            f"{type(policy.score).__name__} reads {', '.join(map(str, lacking))}, which this prefill did not record "
            f"(it has {', '.join(map(str, pre.needs)) or 'nothing'}): run kvjax.prefill(lm, ids, needs=policy), or leave needs= out"
        )


@dataclass(frozen=True)
class Judged:
    """What a scorer and an allocator made of prompts, for every policy that has both.

    Attributes:
        pre: the prompts.   by: the scorer and the allocator.
        rows: of each prompt: scores [l, 1, h, n], each layer's statistics, and what was measured [l, ...].
    """

    pre: Prefilled
    by: tuple
    rows: list[tuple]

    def serves(self, pre: Prefilled, policy: Policy) -> bool:
        """Whether it is of these prompts, by the policy's scorer and allocator."""
        mine, wanted = (jax.tree.flatten(stages) for stages in (self.by, (policy.score, policy.allocate)))
        return self.pre is pre and mine[1] == wanted[1] and all(map(np.array_equal, mine[0], wanted[0]))


def judge(pre: Prefilled, policy: Policy) -> Judged:
    """Score every slot, once for any number of budgets and selections: `compress(pre, policy, judged=...)`.

    Raises:
        TypeError, ValueError: as `compress`.
    """
    _check(pre, policy)
    return Judged(pre=pre, by=(policy.score, policy.allocate), rows=[_judge_row(row, policy) for row in pre.rows])


def _judge_row(row: PrefilledRow, policy: Policy) -> tuple:
    judged = [
        _judge(policy.score.at(layer), policy.allocate.at(layer), k, v, row.length, seen)
        for layer, (k, v, seen) in enumerate(zip(row.k, row.v, row.evidence, strict=True))
    ]
    scores, stats, measured = zip(*judged, strict=True)
    return jnp.stack(scores), list(stats), jax.tree.map(lambda *x: jnp.stack(x), *measured)


def _decide(row: PrefilledRow, policy: Policy, judged: tuple) -> Decision:
    """Keep masks, counts and budgets of one row, with its scores and statistics."""
    scores, stats, measured = judged
    length = int(row.length[0])
    total = policy.total(length)
    asked = jnp.asarray([total], jnp.int32)
    keep, count, budget = _plan(policy.allocate, policy.select, scores, measured, row.length, asked)
    if isinstance(policy.budget, int | np.integer) and policy.budget > length:
        budget = jnp.full_like(budget, policy.budget)
    if not policy.when.after_prefill or total >= length:
        keep, count = _everything(scores, row.length)
    return Decision(scores=scores, stats=stats, keep=keep, count=count, budget=budget, total=total)


def _statistics(policy: Policy) -> tuple[str, ...]:
    """Statistics travel with their slots only if something is evicted while decoding."""
    return policy.score.stats if policy.when.decoding else ()


def carried(rows: Sequence[Any], policy: Policy) -> tuple:
    """Each layer's evidence of all rows, cut to what the scorer goes on reading while decoding."""
    if not policy.when.decoding:
        return ()
    wanted = policy.score.needs
    layers = zip(*(row.evidence for row in rows), strict=True)
    return tuple(ev.concatenate([ev.restrict(e, wanted) for e in rows]) for rows in layers)


def compress(
    pre: Prefilled, policy: Policy, *, room: int = 0, reserve: int | float | None = None, judged: Judged | None = None
) -> KVCache:
    """Keep what the policy keeps of a prefilled prompt, in a pool of just that size.

    Scores and budgets are planned on the device, the L·B·H integers read back, and the pool allocated at their sum, rounded up
    to a size class (at most 1.6%). The prefill stays as it is.

    Args:
        pre: prompts from `kvjax.prefill`.
        policy: what to keep.
        room: slots reserved per KV head for tokens to come; `decode` makes room by itself, this saves it a copy.
        reserve: a budget (same units) whose size class the pool gets at least, so that smaller budgets share one program.
        judged: from `judge`, with a policy of the same scorer and allocator; None: judged here.

    Raises:
        TypeError, ValueError: not a policy, a budget out of range, evidence the prefill did not record, calibrated tables of
            another model, a judgement of other prompts or by other stages.
    """
    _check(pre, policy)
    if reserve is not None:
        check_budget(reserve)
    if judged is not None and not judged.serves(pre, policy):
        raise ValueError(f"judged are other prompts, or these by other stages than the policy's (by {judged.by}): use kvjax.judge")
    trim()
    judged = judged or judge(pre, policy)
    decided = [_decide(row, policy, of_row) for row, of_row in zip(pre.rows, judged.rows, strict=True)]
    counts = np.concatenate([np.asarray(d.count) for d in decided], axis=1)
    start, capacity, slots = plan_regions(counts + room, reserve_slots(pre, reserve, room))
    pools, memory = _pack(pre, policy, decided, start, slots)
    lengths = jnp.concatenate([row.length for row in pre.rows])
    return KVCache(
        **pools,
        start=jnp.asarray(start),
        length=jnp.asarray(counts, jnp.int32),
        capacity=jnp.asarray(capacity),
        budget=jnp.concatenate([d.budget for d in decided], axis=1),
        position=lengths,
        steps=jnp.zeros_like(lengths),
        logits=jnp.stack([row.logits for row in pre.rows]),
        evidence=carried(pre.rows, policy),
        memory=memory,
        retrieval=policy.retrieve.build(list(pre.rows), decided, policy.encode),
        values=policy.encode.values,
    )


def _pack(pre: Prefilled, policy: Policy, decided: list[Decision], start: np.ndarray, slots: int):
    """The pools (keys, values, positions, statistics) with every kept slot in its place, and the merger's memory [L, B]."""
    pools = dict(zip(("k", "v", "pos", "stats"), empty_pools(pre.decoder, policy, slots, pre.rows[0].k[0].dtype), strict=True))
    values, memory = policy.encode.values, []
    elsewhere = {} if values.home == "device" else {"v": pools.pop("v")}
    for layer in range(pre.decoder.layers):  # in the order of the regions: a block may run into the next one
        stages = policy.merge.at(layer), policy.encode.at(layer)
        for r, (row, d) in enumerate(zip(pre.rows, decided, strict=True)):
            kept = {name: d.stats[layer][name] for name in _statistics(policy)}
            dense = dict(k=row.k[layer], v=row.v[layer], stats=kept, length=row.length, scores=d.scores[layer])
            where = d.keep[layer], jnp.asarray(start[layer, r])
            pools, rest, remembered = _store_layer(*stages, pools, dense, *where)
            memory.append(remembered)
            for name, x in rest.items():
                elsewhere[name] = values.adopt(_put_layer(values, elsewhere[name], x, *where), elsewhere[name])
    shape = (pre.decoder.layers, len(pre.rows))
    memory = {name: jnp.stack([m[name][0] for m in memory]).reshape(shape) for name in policy.merge.memory}
    return pools | elsewhere, memory


def empty_pools(decoder: Any, policy: Policy, slots: int, dtype: Any):
    """Zeroed pools for keys, values, positions and statistics; `dtype` is that of the prompt's keys and values."""
    d, encode = decoder.head_dim, policy.encode
    stats = {name: jnp.zeros(slots, jnp.float32) for name in _statistics(policy)}
    pos = jnp.zeros(slots, position_dtype(decoder.max_positions))
    return encode.keys(slots, d, dtype), encode.values.empty(slots, d, encode.value_dtype(dtype)), pos, stats


def reserve_slots(pre: Prefilled, reserve: int | float | None, room: int) -> int:
    """Slots that a uniform budget of `reserve` would need for these prompts, alignment included."""
    if reserve is None:
        return 0
    most = sum(slots_of(reserve, length) + room + ALIGN for length in pre.lengths)
    return most * pre.decoder.layers * pre.decoder.heads
