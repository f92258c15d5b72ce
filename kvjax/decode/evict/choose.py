"""What an eviction keeps: the scorer's state brought up to date, every slot scored, the best of each region selected."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.cache.kv_cache import KVCache
from kvjax.decode.evict.group import Group
from kvjax.decode.evict.reader import Reader
from kvjax.decode.evict.reallocate import mean_budget, reallocated
from kvjax.kernels.compact import Moves, plan
from kvjax.reach import within_reach
from kvjax.view import Ranking


class Choice(NamedTuple):
    """What mergers read of a choice: slots by ascending position, which are used, which stay, and their scores."""

    slots: Int32[Array, "l b h n"]
    used: Bool[Array, "l b h n"]
    keep: Bool[Array, "l b h n"]
    scores: Float32[Array, "l b h n"]


def fold_state(reader: Reader, cache: KVCache, group: Group) -> KVCache:
    """The scorer's state after this step, back in its slots. Views are in slot order, whatever the positions."""
    score, before = reader.stages.score, cache.state.score
    if not jax.tree.leaves(before):
        return cache

    def observe(layer, left, slots, valid):
        view = reader.seen(cache, layer, slots, valid, before)
        return score.at(layer).observe(view, reader.evidence(cache, layer, left))

    after = group.each(observe, group.slots, group.valid)
    where = jnp.where(group.valid, group.slots, cache.slots)
    state = jax.tree.map(lambda pool, x: pool.at[where].set(x, mode="drop"), before, after)
    return cache.replace(state=cache.state.replace(score=state))


def choose(reader: Reader, cache: KVCache, group: Group) -> tuple[Moves, Choice | tuple[()], Int32[Array, "l b h"]]:
    """The moves that leave what stays, the choice itself if something reads it, and the budgets it was made by."""
    slots, used, order = _by_position(cache, group)
    ranking, budget = _ranked(reader, cache, group, slots, used, order)
    keep = jnp.where(group.due[..., None], reader.stages.select(ranking, budget), used)
    moves = plan(regions(jnp.put_along_axis(keep, order, keep, -1, inplace=False)), regions(group.valid))
    return moves, Choice(slots, used, keep, ranking.scores) if reader.stages.merge.rewrites else (), budget


def _ranked(reader: Reader, cache: KVCache, group: Group, slots, used, order) -> tuple[Ranking, Int32[Array, "l b h"]]:
    """Every slot scored, and the budgets: those of the cache, or shared out anew."""
    score, select, allocate = reader.stages.score, reader.stages.select, reader.stages.allocate

    def score_slots(layer, left, slots, used, order, budget):
        view = reader.seen(cache, layer, slots, used, cache.state.score)
        evidence = reader.evidence(cache, layer, left, order)
        measured = () if allocate is None else allocate.at(layer).measure(view, evidence)
        scores = score.at(layer).score(view, evidence)
        second = score.at(layer).second(view, evidence, scores)
        return scores, second, select.protected(view, budget), view.pos, measured

    def protect(layer, left, slots, used, budget):
        return select.protected(reader.seen(cache, layer, slots, used, cache.state.score), budget)

    first = group.budget
    if allocate is not None:
        first = jnp.broadcast_to(mean_budget(group)[:, None], group.budget.shape)
    scores, second, protected, pos, measured = group.each(score_slots, slots, used, order, first)
    ranking = Ranking(
        scores=within_reach(scores, pos, reader.offset + reader.count, reader.windows_of(group.layers)), protected=protected,
        valid=used, pos=pos, second=second, measured=measured, first=group.layers[0], of=cache.start.shape[0],
    )  # fmt: skip
    if allocate is None:
        return ranking, group.budget
    budget = reallocated(allocate, ranking, cache, group, until_next=reader.stages.when.until_next(reader.count))
    return ranking.replace(protected=group.each(protect, slots, used, budget)), budget


def regions(x):
    """Layers and rows as one axis."""
    return x.reshape(-1, *x.shape[2:])


def _by_position(cache: KVCache, group: Group):
    """The slots by ascending position (unused ones last), which of them are used, and the index of each in its region."""
    pos = jnp.where(group.valid, jnp.take(cache.pos, group.slots, mode="clip").astype(jnp.int32), jnp.iinfo(jnp.int32).max)
    order = jnp.argsort(pos, -1)
    return jnp.take_along_axis(group.slots, order, -1), jnp.take_along_axis(group.valid, order, -1), order
