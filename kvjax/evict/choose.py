"""What an eviction keeps: statistics brought up to date, every slot scored, the best of each region selected."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.cache import KVCache
from kvjax.evict.group import Group
from kvjax.evict.reader import Reader
from kvjax.kernels.compact import Moves, plan
from kvjax.view import Ranking


class Choice(NamedTuple):
    """What mergers read of a choice: slots by ascending position, which are used, which stay, and their scores."""

    slots: Int32[Array, "l b h n"]
    used: Bool[Array, "l b h n"]
    keep: Bool[Array, "l b h n"]
    scores: Float32[Array, "l b h n"]


def fold_stats(reader: Reader, cache: KVCache, group: Group) -> KVCache:
    """The scorer's statistics after this step, back in their slots. Views are in slot order, whatever the positions."""
    score = reader.policy.score
    if not score.stats:
        return cache

    def observe(layer, seen, slots, valid):
        return score.at(layer).observe(reader.view(cache, layer, slots, valid), reader.evidence(cache, layer, seen))

    stats = group.each(observe, group.slots, group.valid)
    where = jnp.where(group.valid, group.slots, cache.slots)
    put = lambda pool, x: pool.at[where].set(x, mode="drop")  # noqa: E731
    return cache.replace(stats=cache.stats | {name: put(cache.stats[name], stats[name]) for name in score.stats})


def choose(reader: Reader, cache: KVCache, group: Group) -> tuple[Moves, Choice | tuple[()]]:
    """The moves that leave what stays, and the choice itself if something reads it."""
    score, select = reader.policy.score, reader.policy.select
    slots, used, order = _by_position(cache, group)

    def judge(layer, seen, slots, used, order, budget):
        view, evidence = reader.view(cache, layer, slots, used), reader.evidence(cache, layer, seen, order)
        return score.at(layer).score(view, evidence), select.protected(view, budget), view.pos

    scores, protected, pos = group.each(judge, slots, used, order, group.budget)
    ranking = Ranking(scores=scores, protected=protected, valid=used, pos=pos)
    keep = jnp.where(group.due[..., None], select(ranking, group.budget), used)
    moves = plan(regions(jnp.put_along_axis(keep, order, keep, -1, inplace=False)), regions(group.valid))
    return moves, Choice(slots, used, keep, scores) if reader.policy.merge.rewrites else ()


def regions(x):
    """Layers and rows as one axis."""
    return x.reshape(-1, *x.shape[2:])


def _by_position(cache: KVCache, group: Group):
    """The slots by ascending position (unused ones last), which of them are used, and the index of each in its region."""
    pos = jnp.where(group.valid, jnp.take(cache.pos, group.slots, mode="clip").astype(jnp.int32), jnp.iinfo(jnp.int32).max)
    order = jnp.argsort(pos, -1)
    sort = lambda x: jnp.take_along_axis(x, order, -1)  # noqa: E731
    return sort(group.slots), sort(group.valid), order
